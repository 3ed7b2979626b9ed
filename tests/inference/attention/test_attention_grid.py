"""The PNG of all heads: what is drawn of long texts, and where names have room."""

from pathlib import Path

import numpy as np
import pytest

from bert_jax.inference.attention.maps import AttentionMaps
from bert_jax.inference.attention.pictures import CJK_FONTS, draw_grid


def maps_of(layers: int, heads: int, tokens: list[str]) -> AttentionMaps:
    """Each token looks at the one before it."""
    length = len(tokens)
    weights = np.broadcast_to(np.roll(np.eye(length, dtype=np.float32), -1, axis=1), (layers, heads, length, length))
    none = np.zeros(length, np.int32)
    return AttentionMaps(
        tokens, weights, none, none.astype(bool), np.ones((layers, heads), bool), "text", None, "m", tokens
    )


def drawn(tmp_path: Path, *of: object) -> np.ndarray:
    image = pytest.importorskip("matplotlib.image")
    return image.imread(draw_grid(maps_of(*of), tmp_path / "grid.png"))  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize(("layers", "heads"), [(1, 1), (2, 12), (12, 2)])
def test_a_diagonal_is_drawn_whole_where_there_are_more_tokens_than_pixels(tmp_path, layers: int, heads: int):
    picture = drawn(tmp_path, layers, heads, ["word"] * 500)[..., :3]
    dark: np.ndarray = np.all(np.abs(picture - np.array([8, 48, 107]) / 255) < 0.01, axis=-1)  # of Blues, the weight 1
    left, right = first_run(dark.max(axis=0))
    top, bottom = first_run(dark[:, left:right].max(axis=1))
    assert min(right - left, bottom - top) > 100
    assert right - left == pytest.approx(bottom - top, abs=3)


def first_run(there: np.ndarray) -> tuple[int, int]:
    """Begin and end of the first run of true values: the first head's pixels."""
    first = int(np.argmax(there))
    return first, first + int(np.argmin(there[first:]))


@pytest.mark.slow
@pytest.mark.parametrize(("length", "named"), [(36, True), (37, False)])
def test_tokens_are_named_where_there_is_room(tmp_path, length: int, named: bool):
    one, two = (drawn(tmp_path, 1, 2, [name] * length) for name in ("one", "two"))
    assert (one.shape != two.shape or bool((one != two).any())) == named


@pytest.mark.slow
def test_tokens_are_not_named_where_their_names_would_overlap(tmp_path):
    one, two = (drawn(tmp_path, 30, 1, [name] * 22) for name in ("one", "two"))  # two inches a head
    np.testing.assert_array_equal(one, two)


def test_chinese_and_korean_are_drawn_where_a_font_for_them_is_installed(tmp_path):
    manager = pytest.importorskip("matplotlib.font_manager").fontManager
    if not set(CJK_FONTS) & set(manager.get_font_names()):
        pytest.skip(f"matplotlib knows none of {', '.join(CJK_FONTS)}")
    one, two = (drawn(tmp_path, 1, 2, [name] * 4) for name in ("한국", "글자"))
    assert (one != two).any()
