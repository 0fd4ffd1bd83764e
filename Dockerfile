# docker build -t raylfl .
# docker run --rm --shm-size=2g -v "$PWD:/work" raylfl run digits
#
# raylfl with every extra and the exact versions of requirements.txt. TORCH_INDEX chooses torch's build: by default the
# one for CPUs; docs/running.md has the line for a GPU. tests/test_dockerfile.py checks the paths, names and options in
# this file against the repository; it does not build the image.

FROM python:3.11-slim AS wheel
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY raylfl raylfl
COPY conf conf
COPY jobs jobs
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.11-slim
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ARG EXTRAS=all
ARG UID=1000
COPY requirements.txt /tmp/requirements.txt
COPY --from=wheel /wheels /tmp/wheels
# of torch's builds of the pinned version pip takes the one with a suffix (+cpu, +cu130), which this index has
RUN pip install --no-cache-dir --constraint /tmp/requirements.txt --extra-index-url "$TORCH_INDEX" \
        "$(ls /tmp/wheels/*.whl)[$EXTRAS]" \
    && useradd --create-home --uid "$UID" raylfl \
    && mkdir /work /data \
    && chown raylfl /work /data

# data sets are looked for in /data; runs go to runs/ in the working directory
ENV RAYLFL_DATA=/data
USER raylfl
WORKDIR /work
ENTRYPOINT ["raylfl"]
CMD ["--help"]
