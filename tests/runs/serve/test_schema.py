"""Requests that Schemathesis makes of the OpenAPI schema, and of what it forbids: none is a fault of the server, each
answer has a status and a form that the schema names, and what the schema forbids is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from unmask.serving.engine.models import ServedModel

schemathesis = pytest.importorskip("schemathesis", reason="needs schemathesis, of the extra dev")

pytestmark = pytest.mark.usefixtures("one_thread")

NOT_PROMISED = [schemathesis.checks.positive_data_acceptance]
"""That what the schema allows is accepted: whether a text has a [MASK], or fits, no schema says."""

ALLOWED, FORBIDDEN = schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE


def requests_of(operation: Any, models: dict[str, ServedModel]) -> st.SearchStrategy[Any]:
    """Requests of an address; most ask a model that is for it."""
    use = operation.path.rpartition("/")[2]
    fitting = [name for name, model in models.items() if use in model.endpoints]
    names = st.sampled_from(fitting or sorted(models)) | st.sampled_from([*models, "nobody"])

    def of_model(case: Any, name: str) -> Any:
        if "name" in case.path_parameters:
            case.path_parameters["name"] = name
        if isinstance(case.body, dict) and isinstance(case.body.get("model"), str):
            case.body["model"] = name
        return case

    cases = operation.as_strategy(generation_mode=ALLOWED) | operation.as_strategy(generation_mode=FORBIDDEN)
    return st.builds(of_model, cases, names)


@pytest.mark.parametrize("num_examples", [4, pytest.param(200, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])])
def test_no_request_is_a_fault(num_examples: int, client: TestClient, served_models: dict[str, ServedModel]) -> None:
    schema = schemathesis.openapi.from_asgi("/openapi.json", client.app)
    operations = [found.ok() for found in schema.get_all_operations()]
    statuses: dict[str, set[int]] = {}
    for operation in operations:

        @settings(max_examples=num_examples, suppress_health_check=list(HealthCheck))
        @given(case=requests_of(operation, served_models))
        def is_answered(case: Any) -> None:
            answer = case.call(session=client)
            statuses.setdefault(case.operation.label, set()).add(answer.status_code)
            case.validate_response(answer, excluded_checks=NOT_PROMISED)

        is_answered()
    assert len(statuses) == len(operations)
    assert not [label for label, found in statuses.items() if found <= {404, 409}], "some are asked the right model"
