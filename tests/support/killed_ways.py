"""Ways of a fine-tuning run that are killed: fields of their specs, on one rank and on two."""

import socket
from typing import Any

ONE: dict[str, dict[str, Any]] = {
    "resident": {},
    "disk": {"engine": "offload", "checkpoint": "journal", "checkpoint_every": 7},
    "lazy": {"engine": "offload", "noise": "counter", "writeback_every": 3, "dtype": "bf16"},
    "halves": {"engine": "offload", "tier": "pageable", "checkpoint": "async", "checkpoint_every": 5},
    "momentum": {"method": "zo-sgd-mmt", "engine": "offload", "checkpoint": "sync", "checkpoint_every": 9},
    "wire": {"engine": "offload", "wire": "fp16", "queries": 2},
    "low rank": {
        "method": "lozo", "engine": "offload", "noise": "counter", "options": {"interval": 7}, "checkpoint": "journal",
        "checkpoint_every": 10,
    },
    "packed": {
        "packed": True, "accumulate": 2, "attention": "fast", "law": "rademacher", "engine": "offload",
        "noise": "counter", "granularity": "linear",
    },
}  # fmt: skip
NEWER: dict[str, dict[str, Any]] = {
    "lozo-m": {"noise": "counter", "options": {"interval": 7}, "checkpoint": "journal", "checkpoint_every": 10},
    "subzero": {"noise": "counter", "options": {"interval": 7, "rank": 4}},
    "zo-muon": {"noise": "counter", "options": {"interval": 7, "rank": 4}, "queries": 3, "lr": 1e-3},
    "eggroll": {"noise": "counter", "options": {"shards": 2}, "queries": 4, "lr": 1e-6},
    "qzo": {"checkpoint": "journal", "checkpoint_every": 10, "eps": 1e-3},
    "qes": {"noise": "counter", "queries": 3, "eps": 0.3, "lr": 0.02},
}  # fmt: skip
TWO: dict[str, dict[str, Any]] = {
    "ddp": {"gpus": 2, "parallel": "ddp"},
    "pertp": {"gpus": 2, "parallel": "pertp", "engine": "offload", "checkpoint": "journal", "checkpoint_every": 7},
}


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
