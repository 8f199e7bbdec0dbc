# What the compiled short cuts of recovery offer; see `index_rebuild.scan_segment` and `producer_replay.replay`.

from warmlog.broker.log.recovery.rebuild import Scan

AVAILABLE: bool

def walk_sound(scan: Scan, chunk: bytes, verified: bool, last_offset: int, epoch: int) -> tuple[int, int]: ...
def producer_batches(chunk: bytes | memoryview, left: int, start: int, end: int) -> tuple[list[int], int]: ...
