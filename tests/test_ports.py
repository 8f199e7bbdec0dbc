import subprocess
import sys

from interop.ports import BLOCK, END, FIRST, free_ports

PRINT_PORTS = "from interop.ports import free_ports; print(*free_ports(3), flush=True); input()"


def test_ports_are_consecutive_and_not_chosen_twice() -> None:
    chosen = [free_ports(3) for _ in range(20)]
    assert all(ports == list(range(ports[0], ports[0] + 3)) for ports in chosen)
    flat = [port for ports in chosen for port in ports]
    assert len(set(flat)) == len(flat)
    assert FIRST <= min(flat) <= max(flat) < END


def test_processes_choose_from_different_blocks() -> None:
    processes = [
        subprocess.Popen([sys.executable, "-c", PRINT_PORTS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    blocks = {(free_ports(1)[0] - FIRST) // BLOCK}
    for process in processes:
        assert process.stdout is not None
        blocks.update((int(port) - FIRST) // BLOCK for port in process.stdout.readline().split())
    for process in processes:
        process.communicate("\n")
    assert len(blocks) == 5
