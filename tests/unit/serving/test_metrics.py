"""What Prometheus reads of a server."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from unmask.serving.engine.metrics import BatchMetrics
from unmask.serving.metrics import RequestMetrics


def test_every_figure_has_its_type_and_the_name_of_text_embeddings_inference() -> None:
    metrics, computing = RequestMetrics(), BatchMetrics()
    computing.queue_size = lambda: 3
    metrics.arrived("classify", "리뷰")
    metrics.answered("classify", 200, 0.1, "")
    metrics.answered("classify", 500, 0.1, "")
    computing.read(70, 0.1)
    text = (metrics.text() + computing.text()).decode()
    assert "_total" not in text
    assert 'te_request_count{method="classify",model="리뷰"} 1' in text
    assert 'te_request_input_length_bucket{le="128.0"} 1' in text
    assert "te_request_input_length_sum 70" in text
    found = list(text_string_to_metric_families(text))
    counts = {each.name: each.samples[0].value for each in found if each.type == "counter"}
    assert counts == {"te_request_count": 1, "te_request_success": 1, "te_request_failure": 1}
    assert {each.name for each in found if each.type == "histogram"} == {
        "te_request_duration",
        "te_request_tokenization_duration",
        "te_request_input_length",
        "te_request_queue_duration",
        "te_request_inference_duration",
        "te_batch_next_size",
        "te_batch_next_tokens",
    }
    assert [(each.name, each.samples[0].value) for each in found if each.type == "gauge"] == [("te_queue_size", 3)]
    assert {each.type for each in found} == {"counter", "histogram", "gauge"}
