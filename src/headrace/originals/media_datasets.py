"""Images and videos with captions. The videos of WebVid are in the shards, or are files beside them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final

import numpy as np
import torch
from torch.utils.data import get_worker_info

from headrace.dataset import StreamingDataset
from headrace.dataset.reading.batch_reader import BatchKey, BatchReader, PassRequest
from headrace.dataset.statistics import WorkerBatch
from headrace.dataset.writing.place import StorePlace
from headrace.errors import FormatError, HeadraceError, ObjectNotFoundError
from headrace.format.encodings.images import in_mode, open_image
from headrace.order import BatchPlan
from headrace.originals.video import check_frames, decode_frames
from headrace.storage import Retry, StoreOptions, open_store

_FETCHES: Final = 8  # videos that a worker fetches at the same time


class StreamingLAION(StreamingDataset):
    """Images with captions. A sample has ``image``, and the other columns of the shards, such as ``caption``.

    `headrace.multimodal.convert.laion400m` writes the dataset; shards of MosaicML Streaming's script are read, too.

    Args:
        transform: takes an image, a `PIL.Image.Image` in RGB. By default a uint8 tensor of (3, height, width).
        arguments: those of `headrace.StreamingDataset`, by name.
    """

    def __init__(self, *, transform: Callable[[Any], Any] | None = None, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.transform = _to_tensor if transform is None else transform

    def get_item(self, sample_id: int, retry: int = 7) -> dict[str, Any]:
        """A sample.

        Raises:
            FormatError: its image cannot be decoded. MosaicML's script keeps rows without one.
        """
        sample = super().get_item(sample_id, retry)
        data = sample.pop('jpg')
        return {'image': self.transform(_decoded(data, sample)), **sample}


def _decoded(data: bytes, sample: dict[str, Any]) -> Any:
    try:
        return in_mode(open_image('bytes', data), 'RGB')
    except Exception as error:  # Pillow's decoders raise many kinds
        reason = sample.get('error_message') or f'{type(error).__name__}: {error}'
        raise FormatError(
            f'The image of {sample.get("url")} ({len(data)} bytes) cannot be decoded: {reason}.'
        ) from None


def _to_tensor(image: Any) -> torch.Tensor:
    return torch.from_numpy(np.array(image).transpose(2, 0, 1).copy())


class _Videos(StreamingDataset):
    """Samples with the bytes of a video in the column ``content``."""

    def __init__(self, *, frames: int | None = None, frame_size: tuple[int, int] | None = None, **arguments: Any):
        if frames is not None or frame_size is not None:
            check_frames(frames or 0, frame_size)
        super().__init__(**arguments)
        self.frames, self.frame_size = frames, frame_size

    def _decoded(self, sample: dict[str, Any]) -> dict[str, Any]:
        """The sample, with frames in place of the video's bytes if `frames` is set."""
        if self.frames is None or 'content' not in sample:
            return sample
        frames = decode_frames(sample['content'], self.frames, size=self.frame_size)
        return {**{name: value for name, value in sample.items() if name != 'content'}, 'frames': frames}


class StreamingInsideWebVid(_Videos):
    """Captions with their videos, which are inside of the shards.

    A sample has the columns of WebVid's table: ``name`` is the caption, and ``duration`` is in seconds. The column
    ``content`` has the bytes of the video.

    Args:
        frames: number of frames to decode, spread evenly over the video. The sample then has ``frames`` instead of
            ``content``: uint8 of (frames, height, width, 3).
        frame_size: height and width of the frames in pixels; by default those of the video, which then must be equal in
            a batch.
        arguments: those of `headrace.StreamingDataset`, by name.
    """

    def get_item(self, sample_id: int, retry: int = 7) -> dict[str, Any]:
        """A caption with its video, or with frames."""
        return self._decoded(super().get_item(sample_id, retry))


class StreamingOutsideGIWebVid(_Videos):
    """Captions with their videos, which are files outside of the shards. `get_item` fetches a video when it is read.

    A sample is that of `StreamingInsideWebVid`, and has ``content_path``, the path of its video below `extra_remote`.
    Without `extra_local` and `extra_remote` it has no video.

    Args:
        extra_local: folder in which fetched videos stay. Nothing removes them. By default videos are fetched each time.
        extra_remote: folder or URL of the videos. By default they are in `extra_local`.
        frames, frame_size: as `StreamingInsideWebVid`'s.
        arguments: those of `headrace.StreamingDataset`, by name.
    """

    def __init__(self, *, extra_local: str | None = None, extra_remote: str | None = None, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.extra_local, self.extra_remote = extra_local, extra_remote
        self.download_timeout: float = arguments.get('download_timeout', 60)
        retry = Retry(attempts=1 + arguments.get('download_retry', 2))
        options = StoreOptions(
            endpoint_url=arguments.get('endpoint_url'),
            region=arguments.get('region'),
            anonymous=bool(arguments.get('anonymous')),
            requester_pays=bool(arguments.get('requester_pays')),
            read_timeout=self.download_timeout,
            extra=arguments.get('store_options') or {},
        )
        self._kept = None if extra_local is None else StorePlace(open_store(extra_local), retry)
        self._origin = None if extra_remote is None else StorePlace(open_store(extra_remote, options), retry)

    def get_item(self, sample_id: int, retry: int = 7) -> dict[str, Any]:
        """A caption with its video, or with frames.

        Raises:
            ObjectNotFoundError: the video does not exist.
            StorageError: a store failed.
        """
        sample = super().get_item(sample_id, retry)
        if self._kept is not None or self._origin is not None:
            sample = {**sample, 'content': self.video(sample['content_path'])}
        return self._decoded(sample)

    def video(self, path: str) -> bytes:
        """The bytes of a video, by its ``content_path``; from `extra_local` if it is there. Threads may call it."""
        if self._kept is not None:
            try:
                return self._kept.read(path)
            except ObjectNotFoundError:
                if self._origin is None:
                    raise
        assert self._origin is not None
        data = self._origin.read(path)
        if self._kept is not None:
            # Whole or not at all: other workers may fetch and read it now.
            self._kept.write(path, data)
        return data

    def paths(self, sample_ids: Iterable[int]) -> list[str]:
        """The ``content_path`` of samples."""
        return [super(StreamingOutsideGIWebVid, self).get_item(number)['content_path'] for number in sample_ids]


class _FetchingReader(BatchReader):
    """Reads batches, and has the videos of this worker's next one fetched meanwhile."""

    def __init__(self, dataset: StreamingOutsideGIWebVid, plan: BatchPlan, request: PassRequest) -> None:
        source, marks = dataset.sample_source(), request.mark_streams
        super().__init__(source, plan, dataset.run, request.collate_fn, mark_streams=marks, pad=request.pad)
        self._dataset = dataset
        self._threads: ThreadPoolExecutor | None = None
        self._owner = 0
        self._begun: tuple[int, int] | None = None
        self._fetches: dict[int, list[Future[bytes]]] = {}

    def __getitem__(self, key: BatchKey) -> WorkerBatch:
        if self._dataset.extra_local is None or self._dataset.extra_remote is None:
            return super().__getitem__(key)
        plan = self.plan_of(key)
        if self._begun != key[:2]:
            self._begun, self._fetches = key[:2], {}
        self._fetch(plan, key.number)
        for fetch in self._fetches.pop(key.number):
            fetch.exception()  # the read of the sample tries again, and raises
        worker = get_worker_info()
        self._fetch(plan, key.number + (1 if worker is None else worker.num_workers))
        return super().__getitem__(key)

    def _fetch(self, plan: BatchPlan, number: int) -> None:
        if number in self._fetches or not plan.batches(number, 1):
            return
        if self._threads is None or self._owner != os.getpid():
            self._threads, self._owner = ThreadPoolExecutor(_FETCHES, 'headrace-webvid'), os.getpid()
        try:
            paths = self._dataset.paths(plan.ids(number).tolist())
        except (HeadraceError, OSError):  # the read of the sample raises, or skips it
            paths = []
        self._fetches[number] = [self._threads.submit(self._dataset.video, path) for path in paths]

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), '_threads': None, '_begun': None, '_fetches': {}}


class StreamingOutsideDTWebVid(StreamingOutsideGIWebVid):
    """As `StreamingOutsideGIWebVid`, with the videos of a worker's next batch fetched by threads, ahead of time.

    This needs `extra_local`, and `headrace.StreamingDataLoader`. In a plain loader it is `StreamingOutsideGIWebVid`.
    """

    def reader_of(self, plan: BatchPlan, request: PassRequest) -> BatchReader:
        """A reader that fetches videos ahead."""
        return _FetchingReader(self, plan, request)
