"""ADE20K: scenes with the class of each pixel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.dataset import StreamingDataset

__all__ = ['StreamingADE20K']


class StreamingADE20K(StreamingDataset):
    """Pairs of a scene and its annotation: an image whose pixels are classes, 0 for none of the 150.

    Args:
        joint_transform: takes the pair (scene, annotation), two `PIL.Image.Image`s, and returns a pair. It comes first.
        transform: takes the scene, and returns one. None: it stays.
        target_transform: takes the annotation, and returns one. None: it stays.
        arguments: those of `headrace.StreamingDataset`, by name.
    """

    def __init__(
        self,
        *,
        joint_transform: Callable[[tuple[Any, Any]], tuple[Any, Any]] | None = None,
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        **arguments: Any,
    ) -> None:
        super().__init__(**arguments)
        self.joint_transform, self.transform, self.target_transform = joint_transform, transform, target_transform

    def get_item(self, sample_id: int, retry: int = 7) -> tuple[Any, Any]:
        """The transformed scene and annotation of a sample."""
        sample = super().get_item(sample_id, retry)
        scene, annotation = sample['x'], sample['y']
        if self.joint_transform is not None:
            scene, annotation = self.joint_transform((scene, annotation))
        if self.transform is not None:
            scene = self.transform(scene)
        if self.target_transform is not None:
            annotation = self.target_transform(annotation)
        return scene, annotation
