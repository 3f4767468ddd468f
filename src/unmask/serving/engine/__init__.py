"""The process that computes: models, what they can be asked, and the queue before them.

The way of a request, with the names on it: its endpoint (`fill-mask`) sends an `Ask`, which names a reader (`masks`).
That `Reader`, in `READERS`, names the answerer of the `ServedModel` (a `MaskAnswerer`) that tokenizes the inputs into
`Work`. The `Batcher` lets the answerer compute what waits for it with equal options. The result leaves in a `Reply`.
"""
