# docker build -t tinsmith . && docker run -p 8000:8000 -v tinsmith:/opt/tinsmith/data tinsmith
# docker build -t tinsmith:cuda --target cuda . && docker run --gpus all -p 8000:8000 -v tinsmith:/opt/tinsmith/data tinsmith:cuda
# The first start prints an API key.
FROM golang:1.26-bookworm AS build
ARG VERSION=container
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN make build VERSION="$VERSION" && rm bin/plugins/fake

FROM debian:bookworm-slim AS base
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
RUN useradd --system --uid 10001 --home-dir /opt/tinsmith --shell /usr/sbin/nologin tinsmith \
    && install -d -o tinsmith -g tinsmith /opt/tinsmith/data
COPY --from=build /src/bin /opt/tinsmith/bin
COPY configs /opt/tinsmith/configs
COPY LICENSE /opt/tinsmith/
ENV PATH=/opt/tinsmith/bin:$PATH
USER 10001
VOLUME /opt/tinsmith/data
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=2m CMD ["/opt/tinsmith/configs/container-health.sh"]
ENTRYPOINT ["/opt/tinsmith/configs/container-entrypoint.sh"]
CMD ["serve", "--config", "/opt/tinsmith/configs/container.yaml"]

# NCCL, 430 MB, is asked for by `comm: nccl` only. cuBLASLt, for which products of many rows may be faster, takes 500 MB and comes with --build-arg CUBLASLT=1. Everything else of CUDA that the programs load is the driver's
# (libcuda, and its compiler for our kernels), which the NVIDIA container runtime brings in from the host.
FROM python:3.11-slim-bookworm AS libraries
ARG CUBLASLT=
RUN pip install --no-cache-dir --no-deps --target /pip nvidia-nccl-cu12==2.27.3 ${CUBLASLT:+nvidia-cublas-cu12==12.8.4.1} \
    && mkdir /libraries && mv /pip/nvidia/*/lib/libnccl.so.2 /libraries/ \
    && if [ -n "$CUBLASLT" ]; then mv /pip/nvidia/cublas/lib/libcublasLt.so.12 /libraries/; fi

FROM base AS cuda
COPY --from=libraries /libraries/ /usr/lib/
# The driver compiles the kernels at the first start and keeps the result: by itself in the home directory, which the program may not write to.
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility CUDA_CACHE_PATH=/opt/tinsmith/data/cuda

# What is built without --target.
FROM base
