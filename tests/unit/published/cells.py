"""A row of a table of training runs, for tests to change."""

NEMOTRON = {
    "id": "T1", "model": "Nemotron4-15B", "hidden": "6144", "layers": "32", "heads": "48", "kv_heads": "8",
    "ffn": "24576", "vocab": "256000", "experts": "0", "topk": "0", "moe_ffn": "0", "params_B": "15.6", "seq": "4096",
    "gpu": "H100-SXM-80GB", "n_gpus": "16", "tp": "4", "pp": "1", "vp": "", "cp": "1", "ep": "1", "dp": "4",
    "fsdp": "distributed optimizer", "mbs": "4", "gbs": "64", "precision": "BF16", "recompute": "none",
    "seq_parallel": "yes", "framework": "NeMo dgxc v24.11.1",
    "interconnect": "EOS DGX H100: NVLink4 900GB/s + 8x400G IB/node",
}  # fmt: skip
