# docker build -t glf .                              for the CPU
# docker build -t glf --build-arg TORCH=cu128 .      for CUDA 12.8: any folder of https://download.pytorch.org/whl
# docker run --rm --ipc=host --user "$(id -u):$(id -g)" -v "$PWD:/work" glf adapt --data photos --out runs/a
ARG PYTHON=3.11
FROM python:${PYTHON}-slim

ARG TORCH=cpu
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
# Nothing compiled is kept: the layers hold what pip installs, as in the README
RUN pip install --no-cache-dir --extra-index-url "https://download.pytorch.org/whl/${TORCH}" \
        --constraint constraints.txt '.[prior]' \
    && rm -rf /src/build /src/src/*.egg-info

# A user without rights; the home is open to the user that --user names, who writes the cache there
RUN useradd --uid 1000 --create-home glf && chmod 1777 /home/glf
ENV HOME=/home/glf
USER 1000
WORKDIR /work
ENTRYPOINT ["glf"]
CMD ["--help"]
