"""Training of a network with Adam, in minibatches or full batches (JAX, optax).

The same call gives the same parameters on the same machine. The seed and the epoch determine the order of the
minibatches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.errors import DataError, RequestError

_PIECE = 1024  # examples at a time in full batches on a CPU: their layers fit into its cache


class DivergedError(DataError):
    """A training ended with parameters or losses that are not finite."""


class _State(NamedTuple):
    """The state of a training. since: epochs without a better loss."""

    parameters: Any
    optimiser: Any
    best: Any
    loss: Any
    since: Any
    stopped: Any


def fit(
    parameters: Any,
    loss: Callable[..., Any],
    data: Sequence[NDArray[Any]],
    *,
    epochs: int,
    batch: int | None,
    learning_rate: float,
    cosine: bool = False,
    patience: int | None = None,
    validation: Sequence[NDArray[Any]] | None = None,
    seed: int = 0,
    observe: Callable[[int, Any, Any], None] | None = None,
    title: str = "training",
) -> Any:
    """Minimises a loss with Adam, and returns the parameters as NumPy arrays in the same pytree.

    Raises RequestError if JAX, optax or tqdm are missing; DivergedError if parameters or losses are not finite.

    Args:
        parameters: the initial values, a pytree of arrays.
        loss: a JAX function from parameters and a minibatch of each of `data` to a scalar, a mean over examples. On a
            CPU, the mean over all examples is computed in parts.
        data: arrays with a common leading axis of examples.
        epochs: the largest number of epochs.
        batch: examples in a step; they are shuffled each epoch by the seed, and an incomplete last batch is left out.
            None: all examples in one step.
        learning_rate: of Adam; with `cosine` it falls to 0 over the epochs.
        patience: this many epochs without a better loss end the training, and the best parameters are returned. None:
            all epochs run, and the last parameters are returned.
        validation: arrays like `data`, for the loss that patience compares; None: the mean loss of an epoch's steps.
        observe: called after each epoch with its number, the parameters and the best parameters so far (meaningful with
            patience), as JAX arrays with a leading axis of 1 that the next epoch overwrites.
        title: of the progress bar, which only a terminal shows.
    """
    try:
        import jax
        import optax
        from tqdm import tqdm
    except ImportError as error:
        raise RequestError(f'network: needs JAX and optax: pip install ".[neural]" ({error.name})') from None
    # All leaves have a leading axis of 1: without it the results would differ from earlier ones.
    seeds = np.array([seed], dtype=np.uint32)
    first = jax.tree.map(lambda leaf: np.asarray(leaf)[None], parameters)
    examples = len(data[0])
    size = examples if batch is None else min(batch, examples)
    rate = optax.cosine_decay_schedule(learning_rate, epochs * (examples // size)) if cosine else learning_rate
    optimiser = optax.adam(rate)

    member = _epoch(loss, optimiser, size, examples, batch is None, patience)
    run = jax.jit(jax.vmap(member, in_axes=(0, 0, None, None, None)), donate_argnums=0)
    held_out = tuple(validation) if validation is not None and patience is not None else ()
    columns = jax.device_put((tuple(data), held_out))

    state = _State(
        first,
        jax.vmap(optimiser.init)(first),
        first,
        np.full(len(seeds), np.inf, np.float32),
        np.zeros(len(seeds), np.int32),
        np.zeros(len(seeds), bool),
    )
    epoch, state = 0, jax.device_put(jax.tree.map(np.array, state))  # copies: the epoch writes into its input
    with tqdm(total=epochs, desc=title, unit="epoch", disable=None) as bar:
        while epoch < epochs and not bool(state.stopped.all()):
            state, losses = run(state, seeds, epoch, *columns)
            epoch += 1
            bar.update()
            bar.set_postfix_str(f"loss {float(losses.mean()):.4g}", refresh=False)
            if observe is not None:
                observe(epoch, state.parameters, state.best)
    result = jax.tree.map(np.asarray, state.parameters if patience is None else state.best)
    finite_loss = patience is None or bool(np.isfinite(state.loss).all())
    if not (finite_loss and all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(result))):
        raise DivergedError(f"network: the {title} diverged; lower the learning rate of {learning_rate:g}")
    return jax.tree.map(lambda leaf: leaf[0], result)


def _epoch(
    loss: Callable[..., Any], optimiser: Any, size: int, examples: int, full_batch: bool, patience: int | None
) -> Callable[..., tuple[_State, Any]]:
    """Returns a function that runs one epoch and returns its state and the loss that patience compares."""
    import jax
    import jax.numpy as jnp
    import optax

    piece = _PIECE if full_batch and jax.default_backend() == "cpu" else size
    pieces = max(size // piece, 1)

    def loss_and_gradient(parameters: Any, batch: Any) -> Any:
        if pieces == 1:
            return jax.value_and_grad(loss)(parameters, *batch)
        length = size // pieces
        left = size - length * pieces

        def add(sums: Any, chosen: Any) -> Any:
            loss_and_slope = jax.value_and_grad(loss)(parameters, *chosen)
            return jax.tree.map(lambda total, gradient: total + gradient * (length / size), sums, loss_and_slope), None

        zeros = (jnp.zeros(()), jax.tree.map(jnp.zeros_like, parameters))
        parts = tuple(column[: length * pieces].reshape(pieces, length, *column.shape[1:]) for column in batch)
        sums, _ = jax.lax.scan(add, zeros, parts)
        if left:
            loss_and_slope = jax.value_and_grad(loss)(parameters, *(column[size - left :] for column in batch))
            sums = jax.tree.map(lambda total, gradient: total + gradient * (left / size), sums, loss_and_slope)
        return sums

    def step(carried: Any, batch: Any) -> Any:
        parameters, state = carried
        value, slope = loss_and_gradient(parameters, batch)
        update, state = optimiser.update(slope, state, parameters)
        return (optax.apply_updates(parameters, update), state), value

    def epoch(state: _State, seed: Any, number: Any, data: Any, validation: Any) -> tuple[_State, Any]:
        started = state.parameters, state.optimiser
        if full_batch:
            (parameters, moments), value = step(started, data)
        else:
            key = jax.random.fold_in(jax.random.key(seed), number)
            order = jax.random.permutation(key, examples)[: examples // size * size].reshape(-1, size)
            (parameters, moments), values = jax.lax.scan(
                lambda carried, chosen: step(carried, tuple(column[chosen] for column in data)), started, order
            )
            value = values.mean()
        # The loss of a full-batch step is that of the parameters before the step.
        evaluated = state.parameters if full_batch and not validation else parameters
        if validation:
            value = loss(parameters, *validation)
        if patience is None:
            return state._replace(parameters=parameters, optimiser=moments), value
        better = (value < state.loss) & ~state.stopped
        best = jax.tree.map(lambda new, old: jnp.where(better, new, old), evaluated, state.best)
        since = jnp.where(better, 0, state.since + 1)
        lowest = jnp.where(better, value, state.loss)
        return _State(parameters, moments, best, lowest, since, state.stopped | (since >= patience)), value

    return epoch
