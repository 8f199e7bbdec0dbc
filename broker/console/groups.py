"""Groups: members, positions, and whether their next read comes from memory."""

from functools import partial
from typing import Final

from warmlog.broker.api.errors import EXPECTED
from warmlog.broker.console.values import GroupDetail, GroupForm, GroupList, MemberForm, PositionForm
from warmlog.broker.console.visit import Visit, kafka_error
from warmlog.broker.log.io.files import FileSlice
from warmlog.broker.log.io.page_cache import pages_of
from warmlog.broker.log.io.residency import ColdReadError
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import ListedGroup, ListGroupsRequest
from warmlog.protocol.native.groups import DescribeConsumerGroupsRequest, DescribedConsumerGroup, GroupPosition

PAGE_SIZE: Final = 100
NEXT_READ_BYTES: Final = 64 << 10  # pages of the next fetch that are examined
DEAD: Final = "Dead"


async def list_groups(visit: Visit) -> GroupList:
    """Return a page of the groups that the sender may see, filtered by a substring of their names."""
    wanted, page = visit.text("filter"), visit.number("page", 0, most=1 << 20)
    listed = (await visit.ask(ListGroupsRequest())).groups
    groups: list[ListedGroup] = []
    for each in listed:
        if wanted in each.group:
            groups.append(each)
        await visit.context.checkpoint()
    groups.sort(key=lambda each: each.group)
    shown = groups[page * PAGE_SIZE : (page + 1) * PAGE_SIZE]
    return GroupList(groups=tuple(map(_form, shown)), total=len(groups), page=page, page_size=PAGE_SIZE)


def _form(group: ListedGroup) -> GroupForm:
    return GroupForm(group=group.group, type=group.type.lower(), state=group.state, protocol_type=group.protocol_type)


async def describe_group(visit: Visit, name: str) -> GroupDetail:
    """Return a group with a page of its positions."""
    described: DescribedConsumerGroup = (await visit.ask(DescribeConsumerGroupsRequest(groups=(name,)))).groups[0]
    if described.error:
        raise kafka_error(described.error, described.message)
    if described.state == DEAD and not described.positions:
        raise kafka_error(ErrorCode.GROUP_ID_NOT_FOUND, f"no group {name!r}")
    listed = (await visit.ask(ListGroupsRequest())).groups
    kind = next((each.type.lower() for each in listed if each.group == name), "classic")
    page = visit.number("page", 0, most=1 << 20)
    shown = []
    for position in described.positions[page * PAGE_SIZE : (page + 1) * PAGE_SIZE]:
        shown.append(await _position(visit, position))
        await visit.context.checkpoint()
    lags = [each.lag for each in described.positions if each.lag is not None]
    return GroupDetail(
        group=name,
        type=kind,
        state=described.state,
        protocol=described.protocol,
        members=tuple(
            MemberForm(
                member=each.member_id,
                instance=each.instance_id,
                client_id=each.client_id,
                host=each.client_host,
                partitions=len(each.partitions),
            )
            for each in described.members
        ),
        positions=tuple(shown),
        total=len(described.positions),
        page=page,
        page_size=PAGE_SIZE,
        lag=sum(lags) if lags or not described.positions else None,
        now_ms=visit.tools.clock_ms(),
    )


async def _position(visit: Visit, position: GroupPosition) -> PositionForm:
    next_read, pages, cold = await _next_read(visit, position)
    return PositionForm(
        topic=position.topic,
        partition=position.partition,
        offset=_known(position.offset),
        log_start_offset=_known(position.log_start_offset),
        high_watermark=_known(position.high_watermark),
        lag=position.lag,
        member=position.member_id,
        next_read=next_read,
        next_pages=pages,
        cold_pages=cold,
    )


async def _next_read(visit: Visit, position: GroupPosition) -> tuple[str | None, int | None, int | None]:
    """Return the source of the next fetch, the number of its first pages, and how many are not resident.

    The lookup is that of a fetch, and ends at the first page that is not in memory.
    """
    partition = visit.tools.partitions.local(position.topic, position.partition)
    if partition is None or position.offset < 0:
        return None, None, None
    offsets = partition.log.offsets
    offset = max(position.offset, offsets.log_start_offset)
    if offset >= offsets.high_watermark:
        return "end", 0, 0
    try:
        read = partition.read(offset, NEXT_READ_BYTES, min_one_batch=False)
    except ColdReadError:
        return "disk", None, None
    except EXPECTED:  # a damaged index of one partition must not hide all others
        return None, None, None
    if read is None or read.slice is None:
        return None, None, None
    pages = pages_of(read.slice.position, len(read.slice))
    cold = await visit.in_thread(partial(_missing_pages, visit, read.slice))
    return "disk" if cold else "memory", pages, cold


def _missing_pages(visit: Visit, piece: FileSlice) -> int:
    method = visit.tools.reads.residency.method
    return method.missing_pages(piece.descriptor.fd, piece.position, len(piece))


def _known(offset: int) -> int | None:
    return None if offset < 0 else offset
