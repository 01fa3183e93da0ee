"""The settings that do not go together: one table for the dataset, the loader, the order and `headrace config check`.

A row holds where both of its choices do. The caller gives the settings that it knows by the names of their arguments;
rows about other settings do not hold. Rules that depend on the data stand where the data is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, NamedTuple, TypeAlias

from headrace.errors import ConfigError, HeadraceError, StreamError

Settings: TypeAlias = Mapping[str, Any]
"""Values by the names of arguments and of YAML's keys. `streams` are objects with attributes of such names."""


class BrokenRule(NamedTuple):
    """A rule that does not hold between the arguments of one object, or the keys of one section of a YAML."""

    keys: tuple[str, ...]
    """The arguments that the rule names, or their keys: these have the same names. A message points to the first one
    given."""
    rule: str  # The rule, and what to do.
    inner: tuple[str, ...] = ()  # Arguments of nested objects that the rule depends on.

    def message(self, got: object) -> str:
        """A sentence with the value that was received."""
        return f'{self.rule[:1].upper()}{self.rule[1:]}; got {got}.'


def path_errors(settings: object) -> Iterator[BrokenRule]:
    """The broken rule of `remote`, `local` and `split`: the system takes no NUL in a path."""
    for name in ('remote', 'local', 'split'):
        if '\0' in str(getattr(settings, name)):
            yield BrokenRule((name,), f'`{name}` must be without NUL characters; take them out')


def _always(_: Settings) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Choice:
    """Some values of one setting."""

    key: str
    """The setting; `packing.lanes` is an attribute of `packing`."""
    holds: Callable[[Any], bool] = bool
    """Whether a value is one of those."""
    is_of_streams: bool = False
    """Whether each stream may have a value, in place of the loader's."""

    def values(self, settings: Settings) -> list[tuple[str, Any]]:
        """The values for which it holds, each with the name of its stream."""
        earlier: list[tuple[str, Any]] = []
        if self.is_of_streams:
            for number, stream in enumerate(settings.get('streams') or ()):
                value = getattr(stream, self.key, None)
                earlier.append((stream.name or f'stream_{number}', settings.get(self.key) if value is None else value))
        if not earlier and self.key in settings:
            earlier = [('stream_0', settings[self.key])]  # of the one stream that is the loader's own
        elif not earlier and '.' in self.key:
            outer, _, inner = self.key.partition('.')
            earlier = [('', getattr(settings[outer], inner, None))] if outer in settings else []
        return [(name, value) for name, value in earlier if self.holds(value)]


@dataclass(frozen=True, slots=True)
class Exclusion:
    """Two choices that do not go together."""

    first: Choice
    second: Choice
    rule: str
    """Why, as a sentence without its period. Braces name the `first` and the `second` value, or `streams`."""
    fix: str
    """The remedy, in the same form."""
    only_if: Callable[[Settings], bool] = _always
    """A further condition."""
    error: type[HeadraceError] = ConfigError
    """The class of a dataset's error."""

    def broken(self, settings: Settings) -> BrokenRule | None:
        """The rule, if the settings break it."""
        # The second choice of most rows need not be looked at, and a run asks many times.
        if not (first := self.first.values(settings)) or not (second := self.second.values(settings)):
            return None
        if not self.only_if(settings):
            return None
        names = [name for name, _ in (second if self.second.is_of_streams else first)]
        values = {'first': first[0][1], 'second': second[0][1], 'stream': names[0], 'streams': ', '.join(names)}
        text = f'{self.rule}; {self.fix}'.format(**values)
        keys = [choice.key.partition('.') for choice in (self.first, self.second)]
        of_streams = [choice.key for choice in (self.first, self.second) if choice.is_of_streams]
        places = dict.fromkeys((*(key for key, _, _ in keys), *('streams' for _ in of_streams)))
        return BrokenRule(tuple(places), text, (*(inner for _, _, inner in keys if inner), *of_streams))


def broken_exclusions(settings: Settings) -> Iterator[tuple[Exclusion, BrokenRule]]:
    """The rows that the settings break, with their texts."""
    if 'stream_unit' in settings:  # of a dataset, which counts tokens only with packing
        settings = {**settings, 'packing': settings['stream_unit'] == 'tokens' or None}
    for row in EXCLUSIONS:
        if (rule := row.broken(settings)) is not None:
            yield row, rule


def settings_of(options: Any) -> dict[str, Any]:
    """The settings in an object of options."""
    return {option.name: getattr(options, option.name) for option in fields(options)}


def refuse_exclusions(settings: Settings) -> None:
    """Raise the error of the first row that the settings break, with the texts of all such rows."""
    broken = list(broken_exclusions(settings))
    if broken:
        sentences = [f'{part[:1].upper()}{part[1:]}.' for _, rule in broken for part in rule.rule.split('; ')]
        raise broken[0][0].error(' '.join(sentences))


def _is(*values: object) -> Callable[[Any], bool]:
    return lambda value: value in values


def _is_other_than(*values: object) -> Callable[[Any], bool]:
    return lambda value: value is not None and value not in values


def _lacks(value: object) -> bool:
    return value is None


def _counts(unit: str) -> Callable[[Any], bool]:
    """Whether a range of `skip` has a bound in this unit."""
    return lambda skip: any(str(bound).endswith(unit) for bounds in skip or () for bound in bounds)


def _is_drawn(stream: Any) -> bool:
    return 0 not in (stream.proportion, stream.repeat, stream.choose)


def _are_several(streams: Any) -> bool:
    return len(streams or ()) > 1


_FOREIGN_ORDER: Final = Choice('shuffle_algo', _is_other_than('native'))  # MosaicML Streaming's
_ONE_STREAM: Final = Choice('batching_method', _is('per_stream', 'device_per_stream'))
_COSTS: Final = (Choice('bucket'), Choice('batch_cost'), Choice('balance'), Choice('loss_weight', _is('cost')))
_TOKENS: Final = Choice('packing.weights_count', _is('tokens'))
_EXACT: Final = Choice('remainder', _is('exact'))
_DROP_LAST: Final = Choice('loader.drop_last')
_EXHAUSTED: Final = Choice('when_exhausted', _is_other_than('repeat'))
_FIXED: Final = Choice('sampling_method', _is('fixed'))
_OTHER_MIXTURE: Final = Choice('on_mixture_change', _is_other_than('refuse'))
_GROWTH: Final = Choice('on_growth', _is_other_than('ignore'))
_NEW_SAMPLES: Final = Choice('on_growth', _is('delta', 'wait'))
_WEIGHTS: Final = '`proportion`, `choose` or a broken `repeat` of stream {streams}'
_PARTS: Final = '`subset` or `fraction` of stream {streams}, which count all samples'


def _needs_native(key: str) -> tuple[Exclusion, Exclusion]:
    """The rows of a setting that works with the native order and batches of several streams."""
    rule = f"`{key}` needs the native order, and batching_method 'random' or 'stratified', but got "
    fix = f'change it, or remove `{key}`'
    return (
        Exclusion(Choice(key), _FOREIGN_ORDER, rule + 'shuffle_algo {second!r}', fix),
        Exclusion(Choice(key), _ONE_STREAM, rule + 'batching_method {second!r}', fix),
    )


def _growth(second: Choice, what: str) -> Exclusion:
    rule = "under `on_growth` {first!r} epochs are exact in headrace's own order. It does not go with "
    return Exclusion(_GROWTH, second, rule + what, "leave that out, or set `on_growth` to 'ignore'")


def _new_samples(second: Choice, what: str) -> Exclusion:
    rule = 'under `on_growth` {first!r} an epoch takes the new samples of one stream, each of them once. It does not '
    fix = "leave that out, or set `on_growth` to 'next_pass', which takes all samples"
    return Exclusion(_NEW_SAMPLES, second, f'{rule}go with {what}', fix)


def _tokens(second: Choice, reason: str) -> Exclusion:
    rule = f"`{second.key}` must be left out with `weights_count` 'tokens', but is {{second!r}}: {reason}"
    return Exclusion(_TOKENS, second, rule, "leave it out, or set `weights_count` to 'documents'")


def _decisions(second: Choice, what: str, fix: str, only_if: Callable[[Settings], bool] = _always) -> Exclusion:
    rule = f'proportions cannot be decided in a run with {what}'
    return Exclusion(Choice('decisions'), second, rule, f'{fix}, in a new run; or leave `decisions` out', only_if)


def _packing(second: Choice, rule: str, fix: str) -> Exclusion:
    return Exclusion(Choice('packing'), second, rule, fix)


# fmt: off
EXCLUSIONS: Final[tuple[Exclusion, ...]] = (
    # -- the batch size --------------------------------------------------------------------------------------------
    *(Exclusion(
        Choice('global_batch_size'), Choice(other),
        f'`global_batch_size` and `{other}` exclude each other', 'keep one')
      for other in ('device_batch_size', 'batch_size')),
    Exclusion(
        Choice('uneven'), Choice('device_batch_size'),
        '`uneven` deals a `global_batch_size`', 'give it in place of `device_batch_size`'),
    Exclusion(
        Choice('uneven'), Choice('global_batch_size', _lacks),
        '`uneven` deals a `global_batch_size` to the ranks', 'give it in place of `batch_size`',
        lambda settings: 'batch_size' in settings),
    # -- the order and its batches ---------------------------------------------------------------------------------
    *(row for key in ('bucket', 'batch_cost', 'balance', 'uneven') for row in _needs_native(key)),
    Exclusion(
        Choice('batch_cost'), Choice('batching_method', _is('stratified')),
        "`batch_cost` needs batching_method 'random', since batches of different sizes cannot keep the streams' "
        'shares, but got {second!r}', 'change it, or remove `batch_cost`'),
    Exclusion(
        Choice('batch_cost'), Choice('skip', _counts('ba')),
        'with `batch_cost` batches differ in size, so `skip` cannot count them in `ba`',
        'count samples: `headrace explain` says which samples a batch has'),
    Exclusion(
        Choice('batch_cost'), Choice('global_batch_size'),
        "the global batch size, the most rows of a batch, must be a multiple of `batch_cost`'s `multiple`, "
        '{first.multiple}, but got {second}', 'change one of them',
        lambda settings: bool(settings['global_batch_size'] % settings['batch_cost'].multiple)),
    *(Exclusion(
        choice, Choice('cost', _lacks, is_of_streams=True),
        '`bucket`, `batch_cost`, `balance` and `loss_weight: cost` need the costs of all samples, but stream '
        '{streams} names no `cost`', 'name a column, such as `cost: tokens`',
        lambda settings: not settings.get('packing'), StreamError) for choice in _COSTS),
    Exclusion(
        _EXACT, _FOREIGN_ORDER,
        "remainder 'exact' needs shuffle_algo 'native', got {second!r}: MosaicML Streaming's orders repeat samples "
        'anywhere in the last batches, as samples like others',
        "choose remainder 'repeat' or 'drop', or the native order"),
    Exclusion(
        _EXACT, _ONE_STREAM,
        "remainder 'exact' needs batching_method 'random' or 'stratified': with batches of one stream an epoch draws "
        'whole batches, so a few samples more or less than a stream has',
        "choose one of these methods for evaluation, or remainder 'repeat' or 'drop'",
        lambda settings: sum(map(_is_drawn, settings.get('streams') or ())) > 1),
    Exclusion(
        _EXACT, _DROP_LAST, '`remainder: exact` and `drop_last: true` exclude each other', 'keep one'),
    Exclusion(
        Choice('schedule'), _FOREIGN_ORDER, 'a `schedule` needs the native order, got {second!r}',
        'leave `shuffle_algo` out, or remove the schedule'),
    Exclusion(
        _EXHAUSTED, Choice('schedule'),
        "`when_exhausted` must be 'repeat' with a schedule, but is {first!r}", 'keep one of the two'),
    Exclusion(
        Choice('schedule'), _FIXED,
        "sampling_method 'fixed' needs epochs that draw the same number of samples of a stream each, but a schedule "
        'changes them', "remove one of the two: 'balanced' sampling takes new samples in each epoch"),
    Exclusion(
        Choice('peers', _is_other_than()), Choice('keep_zip', is_of_streams=True),
        'nodes give each other uncompressed shards, but stream {streams} has `keep_zip`', 'remove it, or `peers`',
        error=StreamError),
    # -- decided proportions ---------------------------------------------------------------------------------------
    _decisions(_FOREIGN_ORDER, 'shuffle_algo {second!r}', "leave `shuffle_algo` out, or choose 'native'"),
    _decisions(Choice('schedule'), 'a `schedule`', 'remove it'),
    _decisions(_EXHAUSTED, 'when_exhausted {second!r}', "choose 'repeat'"),
    _decisions(_FIXED, "sampling_method 'fixed'", "choose 'balanced'"),
    _decisions(
        Choice('shuffle', lambda shuffle: not shuffle),
        "streams that come one after the other, as without `shuffle` and with batching_method 'random'",
        "shuffle, or choose 'stratified'", lambda settings: settings.get('batching_method') == 'random'),
    # -- data that grow --------------------------------------------------------------------------------------------
    Exclusion(
        _GROWTH, Choice('fixed_epoch', _is_other_than()),
        'a loader for evaluation reads one epoch always, without the samples that `on_growth` {first!r} would take',
        "set `on_growth` to 'ignore'"),
    _growth(Choice('packing'), 'packing, whose sequences hold documents of several passes'),
    _growth(_FOREIGN_ORDER, "`shuffle_algo` {second!r}, one of MosaicML Streaming's orders"),
    _growth(_FIXED, '`sampling_method` {second!r}, whose samples would change'),
    _growth(Choice('decisions'), 'decided proportions'),
    _growth(Choice('skip', _counts('ba')), 'bounds of `skip` in batches'),
    _new_samples(_ONE_STREAM, '`batching_method` {second!r}'),
    _new_samples(Choice('schedule'), 'a `schedule`'),
    _new_samples(Choice('epoch_size'), '`epoch_size`'),
    _new_samples(_EXHAUSTED, '`when_exhausted` {second!r}'),
    _new_samples(Choice('proportion', _is_other_than(), is_of_streams=True), _WEIGHTS),
    _new_samples(Choice('choose', _is_other_than(), is_of_streams=True), _WEIGHTS),
    _new_samples(Choice('repeat', lambda repeat: bool((repeat or 0) % 1), is_of_streams=True), _WEIGHTS),
    _new_samples(Choice('streams', _are_several), 'several streams, of which only some may have grown'),
    _new_samples(Choice('subset', _is_other_than(), is_of_streams=True), _PARTS),
    _new_samples(Choice('fraction', _is_other_than(), is_of_streams=True), _PARTS),
    *(Exclusion(
        _NEW_SAMPLES, dropped,
        'under `on_growth` {first!r} a new sample comes in one epoch, and an epoch of few samples may have no full '
        "batch. So `remainder` 'drop', or `drop_last`, would lose samples",
        "set `remainder` to 'exact' or 'repeat', or `on_growth` to 'next_pass'")
      for dropped in (Choice('remainder', _is('drop')), _DROP_LAST)),
    Exclusion(
        Choice('loader.pad'), Choice('loader.collate_fn', _is_other_than()),
        '`pad` fills up the rows of batches that headrace makes, but `collate_fn`, or the `transform` or `collate` of '
        'a data module, makes them here', 'pad there, or override `get_item` of the dataset'),
    # -- packing ---------------------------------------------------------------------------------------------------
    Exclusion(
        Choice('packing', _lacks), Choice('packing', _is_other_than(), is_of_streams=True),
        '`packing` of stream {streams} needs `packing` of the loader, or a PackedDataset', 'leave it out'),
    Exclusion(
        Choice('packing', _lacks), Choice('skip', _counts('doc')),
        "`skip` counts documents, as '17doc', only with `packing`", "count samples, as '4096sp'"),
    _packing(
        Choice('loader.collate_fn'),
        '`collate_fn` is not supported with packing, whose batches are tensors of packed sequences',
        'remove it; to make `input_ids` and `labels` of documents, pass a function as `tokenizer`'),
    *(_packing(
        choice, 'rows of packed data have one length, so `bucket`, `batch_cost` and `balance` do nothing',
        'remove them') for choice in _COSTS[:3]),
    _packing(
        _COSTS[3], "rows of packed data have one length, so their weight is `loss_weight` 'samples'",
        "set `loss_weight` to 'samples', or remove it"),
    _packing(
        Choice('decisions'), 'a run with packing repeats no `decisions`, since it takes none', 'leave them out'),
    _packing(
        Choice('loader.pad'), '`packing` makes sequences of one length, so that there is nothing to `pad`',
        'remove one of the two'),
    _packing(
        _FOREIGN_ORDER,
        "`shuffle_algo` must be 'native' with packing, but is {second!r}: a position of MosaicML Streaming's orders "
        'depends on the ranks', 'leave it out'),
    _packing(
        _ONE_STREAM,
        "`batching_method` must be 'random' or 'stratified' with packing, whose sequences hold documents of several "
        'batches, but is {second!r}', 'choose one of these'),
    Exclusion(
        Choice('packing.sequences_per_epoch', _is('all')), _OTHER_MIXTURE,
        "`on_mixture_change` must be 'refuse' with sequences_per_epoch 'all', but is {second!r}: the sequences of a "
        'pass that is packed whole depend on all of its documents', 'leave it out'),
    _tokens(Choice('epoch_size'), 'it counts documents'),
    _tokens(_EXHAUSTED, 'streams are exhausted at other documents than the proportions count'),
    _tokens(_FIXED, 'an epoch takes no part of a stream'),
    _tokens(_OTHER_MIXTURE, 'the lanes of each stream continue in the same mixture only'),
    Exclusion(
        _TOKENS, Choice('proportion', _lacks, is_of_streams=True),
        "`weights_count` 'tokens' needs a `proportion` of each stream, or a schedule, but stream {stream!r} has none",
        'give each stream one in the place of `repeat` and `choose`',
        lambda settings: _are_several(settings.get('streams')) and not settings.get('schedule')),
)
# fmt: on
"""All rows, by subject."""
