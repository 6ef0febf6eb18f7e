# raypipe with its whole environment, for the manifests in k8s/ and for `docker run`.
#
#   docker build -t raypipe:0.1.0-ray2.60.0 .                                       # no vLLM: PROFILE=cpu has it
#   docker build --build-arg PROFILE=gpu -t raypipe:0.1.0-ray2.60.0-gpu .
#
# Not built where it was written, for want of a container runtime: bench/drills/image.py ran its steps in an empty Debian.
FROM python:3.11.9-slim-bookworm

# make builds; wget is what KubeRay's health probes call; vLLM (profiles cpu and gpu) compiles kernels with gcc.
RUN apt-get update \
 && apt-get install --yes --no-install-recommends make wget gcc g++ \
 && rm -rf /var/lib/apt/lists/*

RUN useradd --uid 1000 --create-home raypipe \
 && install --directory --owner=1000 --group=1000 /opt/raypipe /data
USER 1000:1000
WORKDIR /opt/raypipe

# The environment before the code: a change of code alone does not install again.
ARG PROFILE=local
COPY --chown=1000:1000 pyproject.toml hatch_build.py README.md Makefile ./
COPY --chown=1000:1000 requirements requirements
COPY --chown=1000:1000 conf conf
COPY --chown=1000:1000 src src
RUN make setup PROFILE=$PROFILE

COPY --chown=1000:1000 . .
ENV PATH=/opt/raypipe/.venv/bin:$PATH RAYPIPE_CONF=/opt/raypipe/conf RAYPIPE_HOME=/data/home RAY_USAGE_STATS_ENABLED=0
CMD ["raypipe", "doctor"]
