# An image for all nodes of a cluster:
#   docker build --tag registry.example.org/disagmoe .
#   docker build --build-arg GPU_EXTRA=gpu13 ...    # transport nccl; `gpu` for CUDA 12
#   docker build --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cpu ...   # without CUDA
#
# Ray wants the same Python, Ray and DisagMoE on every node, so all of them use one image. Give
# containers shared memory (--shm-size=8g) and a folder that all see for data and run directories.

FROM python:3.12-slim

# ray[default] looks at processes and network devices; kubelet probes of KubeRay call wget
RUN apt-get update \
 && apt-get install --yes --no-install-recommends iproute2 procps wget \
 && rm -rf /var/lib/apt/lists/*

WORKDIR /opt/disagmoe

# torch alone and first, as in the Makefile: what depends on it would bring the newest build
ARG TORCH_INDEX=https://pypi.org/simple
COPY requirements.lock .
RUN pip install --no-cache-dir --index-url "$TORCH_INDEX" "$(grep '^torch==' requirements.lock)"
RUN grep -v '^torch==' requirements.lock > /tmp/others.txt \
 && pip install --no-cache-dir --requirement /tmp/others.txt \
 && rm /tmp/others.txt

COPY . .
RUN pip install --no-cache-dir --no-deps --no-build-isolation . && disagmoe --version

# cupy and NCCL; on CUDA 12 this replaces torch by a build for it, as `make install-gpu` does
ARG GPU_EXTRA=""
RUN if [ -n "$GPU_EXTRA" ]; then \
      pip install --no-cache-dir --no-build-isolation ".[$GPU_EXTRA]" && disagmoe --version; \
    fi

# a Ray that stops passes SIGTERM on; see terminationGracePeriodSeconds in configs/ray/rayjob.yaml
STOPSIGNAL SIGTERM
CMD ["disagmoe", "doctor"]
