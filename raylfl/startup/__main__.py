"""`python -m raylfl.startup`: makes `import lightning` work with a torchvision whose binary does not fit torch."""

from raylfl.startup.torchvision_cpu import install_at_start_up

if (path := install_at_start_up()) is not None:
    print(f"torchvision's operators do not fit this torch: {path} makes `import lightning` work nevertheless")
