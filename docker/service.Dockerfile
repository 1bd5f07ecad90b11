# The service, the command line and the migrations: no torch.
#   docker build -f docker/service.Dockerfile -t optimus-service:0.1.0 .
ARG PYTHON_IMAGE=python:3.11-slim
# hadolint ignore=DL3006
FROM ${PYTHON_IMAGE} AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
# service,cli,worker,datasets: with PyTorch, for jobs that train inside this container (the local cluster).
ARG EXTRAS=service,cli
WORKDIR /src
# What is installed depends on these files only; the code comes after, so that its changes do not install all anew.
COPY pyproject.toml README.md LICENSE alembic.ini constraints.txt ./
COPY migrations migrations
COPY models models
COPY scheduler scheduler
COPY simulator simulator
COPY service service
COPY workers workers
COPY cli cli
RUN python -m venv /opt/optimus \
    && /opt/optimus/bin/pip install --constraint constraints.txt ".[${EXTRAS}]" \
    && find /opt/optimus -name __pycache__ -prune -exec rm -rf {} +

# hadolint ignore=DL3006
FROM ${PYTHON_IMAGE}
ARG VERSION=0.1.0
LABEL org.opencontainers.image.title="optimus-service" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN groupadd --gid 10001 optimus \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin optimus \
    && install -d -o 10001 -g 10001 -m 0700 /var/lib/optimus
COPY --from=build /opt/optimus /opt/optimus
ENV PATH=/opt/optimus/bin:$PATH \
    OPENBLAS_NUM_THREADS=1 \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    HOME=/tmp \
    OPTIMUS_DATA_DIRECTORY=/var/lib/optimus
USER 10001:10001
VOLUME /var/lib/optimus
EXPOSE 8080
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=6 \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8080/healthz', timeout=4)"]
ENTRYPOINT ["optimus"]
CMD ["serve"]
