# Training on a host of a TPU pod. Everything is installed here: the container builds and downloads nothing at its start.
#
#     docker build -t bert_jax .                              TPU; on GPUs: --build-arg EXTRAS=train,cuda,gcs
#     docker run --rm bert_jax train.scale configs/bert_base.py
#     docker run --rm --privileged --network=host bert_jax train.pretrain configs/bert_base.py data=gs://... run=gs://...
FROM python:3.11-slim-bookworm

ARG EXTRAS=train,tpu,gcs
ENV PYTHONUNBUFFERED=1
WORKDIR /bert_jax

# The dependencies in a layer of their own, which a change of the code leaves as it is.
COPY pyproject.toml README.md LICENSE ./
COPY .ci/install.py .ci/install.py
COPY constraints constraints
RUN mkdir bert_jax && touch bert_jax/__init__.py \
    && PIP_NO_CACHE_DIR=1 python .ci/install.py constraints/newest.txt "$EXTRAS"

COPY bert_jax bert_jax
COPY train train
COPY configs configs
RUN python -m compileall -q bert_jax train configs

ENTRYPOINT ["python", "-m"]
CMD ["train.pretrain", "--help"]
