"""The training studies of the lab: what `tessera lab` cannot measure without PyTorch.

    python -m tessera.lab --list
    python -m tessera.lab training --quick --out results   # transformers: time, memory and what fits
    python -m tessera.lab gpt --out results                # a language model with three attentions
    python -m tessera.lab peers --out results              # beside PyTorch's scaled_dot_product_attention
    tessera report results                                 # the page, also written at the end of every run

Rows are those of `tessera lab` (schema 1) with a few more fields; `tessera report` draws both into one page.
docs/guides/training.md explains what is measured and how.
"""
