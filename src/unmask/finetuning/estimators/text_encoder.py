"""Embedding with scikit-learn's interface: `transform` makes vectors of texts in memory, for `Pipeline` and the like.

vectors = TextEncoder("runs/bert").fit_transform(["a fine film", "dull"])
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, Literal, Self
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin

from unmask.errors import ValuesError
from unmask.finetuning.estimators.inputs import Texts, given_model, rows_of, tags_of_texts
from unmask.inference.features.batches import FeatureModel
from unmask.inference.features.similarity import embed, load_embedder
from unmask.io.paths import model_directory


@dataclass(eq=False, repr=False)
class TextEncoder(TransformerMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn is not typed
    """Vectors of texts from a pre-trained model, which stays as it is: `fit` learns nothing.

    The model stays in memory from one `transform` to the next. It is loaded anew after `fit`, and after a parameter
    other than `pool` and `normalise` has changed.

    Args:
        model: directory of a pre-trained model, or of the run that made it.
        layers: "embeddings", "layer-N", "second-to-last", "last" or "concat-last-4"; see `unmask features`.
        pool: "mean", "max", "cls" or "mean-with-special": how the tokens of a text become one vector; "cls" is the
            first token's, or the last one's of a causal model. None: as sentence-transformers saved it, or "mean".
        normalise: True divides each vector by its length, as sentence-transformers does for the models that say so;
            here it is as given, whatever the model says.
        max_length: most tokens that are read at once; a longer text is read in windows, or for "cls" and
            "mean-with-special" cut. None: as many as the model was pre-trained on, sentence-transformers has read, or
            there are positions for.
        device: "auto" (a GPU where there is one), "cpu" or "cuda".
        precision: "fp32" or "bf16".
    """

    model: str | Path | None = None
    _: KW_ONLY
    layers: str = "last"
    pool: str | None = None
    normalise: bool = False
    max_length: int | None = None
    device: Literal["auto", "cpu", "cuda"] = "auto"
    precision: Literal["fp32", "bf16"] = "fp32"

    def fit(self, X: Texts, y: Any = None) -> Self:  # noqa: N803
        """Checks that there is such a model.

        Raises:
            UserError: there is none.
        """
        model_directory(given_model(self.model, "TextEncoder"))
        _LOADED.pop(self, None)
        return self

    def transform(self, X: Texts) -> NDArray[np.float32]:  # noqa: N803
        """(texts, width): as wide as the model's hidden states, or with "concat-last-4" four times that.

        Args:
            X: a list, an array or a column of texts.

        Raises:
            UserError: the model does not load, or `X` is empty or holds something other than texts.
        """
        rows = rows_of(X)
        if "text_b" in rows[0]:
            raise ValuesError("X holds pairs of texts: expected single texts, each of which becomes a vector")
        return embed(self._load(), (row["text"] for row in rows), pool=self.pool, normalise=self.normalise)

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[np.object_]:
        """(width,) `textencoder0`, `textencoder1` ..., as scikit-learn names features that have no names.

        Args:
            input_features: ignored.

        Raises:
            UserError: the model does not load.
        """
        (width,) = self._load().shape
        return np.array([f"textencoder{number}" for number in range(width)], dtype=object)

    def _load(self) -> FeatureModel:
        model = given_model(self.model, "TextEncoder")
        options: dict[str, Any] = {
            "layers": self.layers,
            "max_length": self.max_length,
            "device": self.device,
            "precision": self.precision,
        }
        parameters = {"model": model, **options}
        loaded = _LOADED.get(self)
        if loaded is None or loaded[0] != parameters:
            loaded = _LOADED[self] = parameters, load_embedder(model, **options)
        return loaded[1]

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def __sklearn_tags__(self) -> Any:
        tags = tags_of_texts(super().__sklearn_tags__())
        tags.requires_fit = False
        return tags


_LOADED: WeakKeyDictionary[TextEncoder, tuple[dict[str, Any], FeatureModel]] = WeakKeyDictionary()
"""The model of each encoder and the parameters that it was loaded with; the encoder itself is copied and pickled."""
