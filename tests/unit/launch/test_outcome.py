"""Judging how a gang ended."""

import pytest

from triplepoint.launch.error_texts import classify
from triplepoint.launch.outcome import Failure, describe_exit, judge_hung, judge_kill, log_tail, root_cause


@pytest.mark.parametrize(
    "message",
    [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of 79 GiB",
        "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 64.00 MiB.",
        "RuntimeError: [enforce fail at alloc_cpu.cpp:128] err == 0. DefaultCPUAllocator: can't allocate memory: you "
        "tried to allocate 4000000000000 bytes. Error code 12 (Cannot allocate memory)",
        "RuntimeError: CUDA error: out of memory",
    ],
)
def test_classify_out_of_memory(message: str) -> None:
    assert classify(message) == "oom"


@pytest.mark.parametrize(
    "message",
    [
        "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3690, unhandled system error",
        "RuntimeError: NCCL error: unhandled system error",
        "[rank3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE)",
    ],
)
def test_classify_errors_of_collectives(message: str) -> None:
    assert classify(message) == "collective"


@pytest.mark.parametrize(
    "message",
    [
        "RuntimeError: CUDA error: uncorrectable ECC error encountered",
        "RuntimeError: No HIP GPUs are available",
        "NCCL error: unhandled cuda error: uncorrectable NVLink error detected",
        "CUDA error: invalid device ordinal",
    ],
)
def test_classify_broken_devices(message: str) -> None:
    assert classify(message) == "bad_node"


def test_classify_anything_else_is_a_crash() -> None:
    assert classify("ValueError: expected 4 layers") == "crashed"


def test_judge_kill_counts_only_what_the_kernel_killed() -> None:
    killed = Failure(1, "crashed", "killed by signal 9 (SIGKILL)", 10)
    assert judge_kill(killed, 1).status == "oom"
    assert judge_kill(killed, 0) is killed
    raised = Failure(1, "crashed", "ValueError: x", 10)
    assert judge_kill(raised, 3) is raised


def test_root_cause_is_not_the_rank_that_saw_the_other_go() -> None:
    seen_first = Failure(1, "crashed", "RuntimeError: Connection closed by peer [127.0.0.1]:4242", 10)
    cause = Failure(2, "crashed", "killed by signal 9 (SIGKILL)", 20)
    assert root_cause([seen_first, cause]) is cause


def test_root_cause_may_be_an_error_whose_name_reads_like_a_lost_peer() -> None:
    raised = Failure(1, "crashed", "TypeError: unsupported operand type(s) for +: 'int' and 'str'", 20)
    lost = Failure(0, "crashed", "RuntimeError: Connection closed by peer [127.0.0.1]:4242", 10)
    assert root_cause([lost, raised]) is raised


def test_root_cause_out_of_memory_goes_before_an_earlier_crash() -> None:
    crash = Failure(0, "crashed", "ValueError: x", 10)
    oom = Failure(3, "oom", "CUDA out of memory", 11)
    assert root_cause([crash, oom]) is oom


def test_describe_exit_names_the_signal() -> None:
    assert describe_exit(-11) == "killed by signal 11 (SIGSEGV)"
    assert "out-of-memory killer" in describe_exit(-9)
    assert describe_exit(7) == "exited with status 7 and no message"


WAITING = (
    'Current thread 0x1 (most recent call first):\n  File "/x/torch/distributed/distributed_c10d.py", line 1 in wait'
)
COMPUTING = 'Current thread 0x1 (most recent call first):\n  File "/x/torch/nn/modules/linear.py", line 1 in forward'


def test_find_hung_rank_that_does_not_answer() -> None:
    rank, why = judge_hung({0: WAITING, 1: WAITING, 2: ""}, {0: 3, 1: 3, 2: 3})
    assert rank == 2
    assert "does not react" in why


def test_find_hung_rank_outside_the_collective() -> None:
    rank, _ = judge_hung({0: WAITING, 1: COMPUTING, 2: WAITING}, {0: 3, 1: 3, 2: 3})
    assert rank == 1


def test_find_hung_all_waiting_names_the_slowest() -> None:
    rank, why = judge_hung({0: WAITING, 1: WAITING}, {0: 4, 1: 2})
    assert rank == 1
    assert why == "finished 2 steps, the fewest"


def test_log_tail_keeps_last_lines_of_hostile_text(tmp_path) -> None:
    log = tmp_path / "rank0.log"
    log.write_bytes(b"\xff\xfe\n" + b"\n".join(b"line %d" % i for i in range(100)) + b"\n" + b"x" * 9000)
    tail = log_tail(log, 3)
    assert tail[:2] == ("line 98", "line 99")
    assert len(tail[2]) == 500
    assert log_tail(tmp_path / "missing.log") == ()
