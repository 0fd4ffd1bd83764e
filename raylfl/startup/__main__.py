"""`python -m raylfl.startup`: prepares an environment once, as `make setup` does."""

from raylfl.startup.torchvision_cpu import install_at_start_up

if (path := install_at_start_up()) is not None:
    print(f"torchvision has no operators for this torch: {path} makes `import lightning` work all the same")
