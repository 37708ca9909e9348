"""Questions and answers as JSON has them: what is read, what is written, and their schemas."""

import itertools
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, get_args

from pydantic import BaseModel, ConfigDict

from mpvae.config import Metric
from mpvae.errors import DataError
from mpvae.serve.answering import MAX_ROWS, Answers

MAX_NAMED = 200
"""Features or labels above which the page of questions does not name them."""
MAX_OBJECTS = 2 * MAX_ROWS + 2
"""Objects in a question: rows, their labels, itself, and one too many to be told of."""
_METRICS = get_args(Metric)


@dataclass(frozen=True, slots=True)
class Question:
    """Rows, and what is asked of them."""

    rows: list[dict[str, Any]]
    labels: list[dict[str, Any]]  # empty for /predict
    metric: Metric | None


def read_question(text: bytes, labels: str | None = None) -> Question:
    """The question in the body of a request.

    Parameters
    ----------
    text
        JSON.
    labels
        What the labels of the rows are called in it, if there must be some.

    Raises
    ------
    DataError
        If it is none. What the rows and labels hold is left to `Answers`.
    """
    found = read_json(text)
    if not isinstance(found, dict):
        raise DataError('the question is no object; give one such as {"rows": [...]}')
    parts = ["rows", "metric" if labels is None else labels]
    strange = next((name for name in found if name not in parts), None)
    if strange is not None:
        raise DataError(
            f"{strange[:80]!r} is no part of this question; give {' and '.join(parts)}"
        )
    metric = found.get("metric")
    if metric is not None and metric not in _METRICS:
        raise DataError(f"there is no such metric; give one of {', '.join(_METRICS)}")
    return Question(
        rows=_objects(found, "rows"),
        labels=[] if labels is None else _objects(found, labels),
        metric=metric,
    )


def read_json(text: bytes) -> Any:
    """A JSON text, read strictly: no name given twice, no NaN, no nesting without end."""
    n_objects = itertools.count(1)

    def each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if next(n_objects) > MAX_OBJECTS:  # before millions of them fill the memory
            raise DataError(f"the question has too many rows; give at most {MAX_ROWS}")
        found = dict(pairs)
        if len(found) < len(pairs):
            twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
            raise DataError(f"{twice[:80]!r} is given twice in one object; give it once")
        return found

    try:
        return json.loads(
            text.decode(), object_pairs_hook=each_once, parse_constant=_no_constant
        )
    except UnicodeDecodeError:
        raise DataError("the question is not UTF-8 text; encode it so") from None
    except json.JSONDecodeError as error:
        raise DataError(
            f"the question is no JSON: {error.msg} at character {error.pos}"
        ) from None
    except RecursionError:
        raise DataError("the question is nested too deeply; give a list of rows") from None
    except DataError:
        raise
    except ValueError:  # Python reads no integer of more than 4,300 digits
        raise DataError("a number of the question has too many digits") from None


def write_json(value: Any) -> bytes:
    """JSON of an answer; raises ValueError on numbers that JSON does not have."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode("ascii")


def problem(text: str) -> bytes:
    """JSON of an error, in one line. Any text can be written, even one that is no Unicode."""
    return write_json({"error": " ".join(text.split())})


def _no_constant(name: str) -> NoReturn:
    raise DataError(f"{name} is no number in JSON; give a finite number, or null")


def _objects(found: Mapping[str, Any], part: str) -> list[dict[str, Any]]:
    if part not in found:
        raise DataError(f"the question lacks {part!r}; give a list with one object per row")
    value = found[part]
    if not isinstance(value, list):
        raise DataError(f"{part!r} is no list; give a list with one object per row")
    if len(value) > MAX_ROWS:
        raise DataError(f"{part!r} has {len(value)} entries; give at most {MAX_ROWS} at a time")
    wrong = next((i for i, row in enumerate(value) if not isinstance(row, dict)), None)
    if wrong is not None:
        raise DataError(f"entry {wrong + 1} of {part!r} is no object; give names with values")
    return value


def question_schema(answers: Answers | None, labels: str | None = None) -> dict[str, Any]:
    """JSON schema of a question; with the names of features and labels, if answers are given.

    Parameters
    ----------
    answers
        Of the model whose names may be shown.
    labels
        As in `read_question`.
    """
    cell = {"type": ["number", "string", "boolean", "null"]}
    row: dict[str, Any] = {"type": "object", "additionalProperties": cell}
    known: dict[str, Any] = {"type": "object", "additionalProperties": {"enum": [0, 1]}}
    if answers is not None and len(answers.features) <= MAX_NAMED:
        number = {"type": ["number", "boolean", "null"]}
        row = _named(
            {f["name"]: cell if "levels" in f else number for f in answers.features},
            required=True,
        ) | {"example": {f["name"]: f["usual"] for f in answers.features}}
    if answers is not None and len(answers.labels) <= MAX_NAMED:
        known = _named({name: {"enum": [0, 1]} for name in answers.labels})
        known["example"] = {answers.labels[0]: 1}
    parts = {"rows": _list_of(row, "Feature name to value, null where it is missing.")}
    if labels is None:
        parts["metric"] = {
            "enum": [*_METRICS, None],
            "description": "Also decide, for this metric.",
        }
    else:
        parts[labels] = _list_of(
            known, "For each row, label name to 1 (present) or 0 (absent)."
        )
    needed = ["rows"] if labels is None else ["rows", labels]
    return _named(parts) | {"required": needed}


def label_schema(answers: Answers | None) -> dict[str, Any]:
    """JSON schema of the name of a label, likewise."""
    if answers is None or len(answers.labels) > MAX_NAMED:
        return {}
    return {"enum": answers.labels}


def _named(properties: dict[str, Any], *, required: bool = False) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "additionalProperties": False}
    return schema | ({"required": list(properties)} if required else {})


def _list_of(item: dict[str, Any], description: str) -> dict[str, Any]:
    return {
        "type": "array",
        "minItems": 1,
        "maxItems": MAX_ROWS,
        "items": item,
        "description": description,
    }


class Probabilities(BaseModel):
    """Probability of every label for every row."""

    labels: list[str]
    probabilities: list[list[float]]
    decisions: list[list[int]] = []


class Conditional(BaseModel):
    """Probabilities given the known labels, and without them."""

    labels: list[str]
    probabilities: list[list[float]]
    marginals: list[list[float]]
    effective_draws: list[float | None]


class Joint(BaseModel):
    """Log-probabilities, in nats, with their Monte Carlo errors."""

    log_prob: list[float | None]
    standard_error: list[float | None]


class Feature(BaseModel):
    """A feature: its name, a usual value, and its levels if it is a category."""

    name: str
    usual: float | str | None
    levels: list[str] = []


class Label(BaseModel):
    """A label, and its place on the map if there is one."""

    name: str
    x: float | None = None
    y: float | None = None
    group: int | None = None


class About(BaseModel):
    """What is served."""

    name: str
    version: str
    features: list[Feature]
    labels: list[Label]
    examples: list[dict[str, Any]]


class Pair(BaseModel):
    """Two labels and how they go together."""

    model_config = ConfigDict(extra="allow")
    label_a: str
    label_b: str
    residual_correlation: float | None


class Health(BaseModel):
    """That the service is there, and what it serves."""

    status: str
    model: str
    version: str
    features: int
    labels: int


class Ready(BaseModel):
    """That questions are answered without delay."""

    status: str


class Problem(BaseModel):
    """What is wrong, and what to do."""

    error: str
