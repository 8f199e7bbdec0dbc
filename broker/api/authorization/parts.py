"""Split a request into authorized and refused items, and merge the answers."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

from msgspec.structs import replace

from warmlog.broker.api.access import Access
from warmlog.broker.api.context import Context
from warmlog.broker.api.handler import Handler
from warmlog.broker.partitions.partitions import Partitions


class CheckedCall(NamedTuple):
    """A request, its context, the rights of its sender, and the handler behind the check."""

    request: Any
    context: Context
    access: Access
    handle: Handler
    partitions: Partitions

    async def answer(self, request: Any = None) -> Any:
        """Return the handler's response to the request, or to a modified one."""
        return await self.handle(self.request if request is None else request, self.context)


Check: TypeAlias = Callable[[CheckedCall], Awaitable[Any]]
May: TypeAlias = Callable[[Any], bool]
Refuse: TypeAlias = Callable[[Any], Any]


async def answer_allowed(
    call: CheckedCall, items: str, may: May, refuse: Refuse, empty: Any, *, results: str = "", keeps_each: bool = True
) -> Any:
    """Have the handler answer the items that `may` allows; the others get the result of `refuse`, in the same order.

    `items` and `results` are the fields of request and response, `empty` a response without results. A response with
    fewer or more results than items is an error of the whole request, and stays unchanged. Without `keeps_each`, equal
    items are answered once, as the handler does.
    """
    request, context = call.request, call.context
    wanted: Sequence[Any] = getattr(request, items)
    if not keeps_each:
        wanted = tuple(dict.fromkeys(wanted))
    flags = await context.map(may, wanted)
    if all(flags):
        return await call.answer()
    allowed = tuple([item for item, is_allowed in zip(wanted, flags, strict=True) if is_allowed])
    response = await call.answer(replace(request, **{items: allowed})) if allowed else empty
    field = results or items
    answered = getattr(response, field, None)
    if answered is None or len(answered) != len(allowed):
        return response
    left = iter(answered)

    def merged(item: Any, is_allowed: bool) -> Any:
        return next(left) if is_allowed else refuse(item)

    return replace(response, **{field: await context.map(merged, wanted, flags)})


async def without_hidden(call: CheckedCall, response: Any, field: str, may: May) -> Any:
    """Return a response without the entries that `may` does not allow."""
    entries = getattr(response, field)
    flags = await call.context.map(may, entries)
    if all(flags):
        return response
    shown = tuple([entry for entry, is_allowed in zip(entries, flags, strict=True) if is_allowed])
    return replace(response, **{field: shown})
