"""One test per rule, each on a program set that breaks that rule alone where this is possible."""

from dataclasses import replace

import pytest

from disagmoe.errors import ScheduleError
from disagmoe.schedule.compile import compile_programs
from disagmoe.schedule.ir import Program, ProgramSet, ProgramSpec
from disagmoe.schedule.layout import Group, Layout
from disagmoe.schedule.text import parse_instruction
from disagmoe.schedule.verify import (
    RULES,
    channels_ordered,
    check,
    computed_once,
    finishes_in_launch_order,
    finishes_with_free_channels,
    globally_ordered,
    groups_match,
    payloads_follow_counts,
    slots_live,
    step_ends,
    sums_ascend,
    transfers_complete,
    verify,
)


def spec(**kwargs):
    return ProgramSpec(layout=Layout(layers=1), **{"micro_batches": 2, **kwargs})


def programs_of(a0, f0, **kwargs):
    """Programs of two groups from one line per instruction."""
    programs = tuple(
        Program(Group.parse(name), tuple(map(parse_instruction, lines)))
        for name, lines in (("A0", a0), ("F0", f0))
    )
    return ProgramSet(spec(**kwargs), programs)


def legal(**kwargs):
    """Lines of a legal set of programs, to be spoiled."""
    programs = compile_programs(spec(**kwargs), schedule="af_pipe", in_flight=2).programs
    return [list(map(str, program.instructions)) for program in programs.programs]


def changed(lines, old, new):
    at = lines.index(old)
    return [*lines[:at], *([new] if new else []), *lines[at + 1 :]]


def test_legal_programs_pass_every_rule():
    verify(programs_of(*legal()))
    verify(programs_of(*legal(training=False), training=False))


def test_each_rule_has_a_name_that_leads_its_message():
    assert len({rule.__name__ for rule in RULES}) == len(RULES) == 11
    with pytest.raises(ScheduleError, match=r"^computed_once: A0, instruction 0: 'head_eval m0'"):
        check(computed_once, programs_of(["head_eval m0"], []))


def test_every_group_has_a_program():
    programs = programs_of(*legal())
    with pytest.raises(ScheduleError, match="programs for F0 A0, expected A0 F0"):
        groups_match(ProgramSet(programs.spec, programs.programs[::-1]))
    with pytest.raises(ScheduleError, match="groups_match: programs for A0, expected A0 F0"):
        verify(ProgramSet(programs.spec, programs.programs[:1]))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("embed m1", "embed m0", r"'embed m0' is computed twice"),
        ("embed m1", "embed m2", r"'embed m2' is no op of this layout"),
        ("embed m1", "reduce_counts L0 m1", r"'reduce_counts L0 m1' is no op of this layout"),
        ("embed m1", "experts_fwd L0 m1", r"'experts_fwd L0 m1' belongs to F0"),
        ("embed m1", None, r"never computed: embed m1$"),
    ],
)
def test_everything_is_computed_once_by_its_owner(old, new, message):
    a0, f0 = legal()
    with pytest.raises(ScheduleError, match=message):
        computed_once(programs_of(changed(a0, old, new), f0))


def test_an_error_shows_the_guilty_line_between_its_neighbours():
    a0, f0 = legal()
    at = a0.index("embed m1")
    with pytest.raises(ScheduleError) as caught:
        computed_once(programs_of(changed(a0, "embed m1", "embed m2"), f0))
    assert str(caught.value).splitlines() == [
        f"A0, instruction {at}: 'embed m2' is no op of this layout",
        f"    {at - 2:4d}  {a0[at - 2]}",
        f"    {at - 1:4d}  {a0[at - 1]}",
        f"  > {at:4d}  embed m2",
        f"    {at + 1:4d}  {a0[at + 1]}",
        f"    {at + 2:4d}  {a0[at + 2]}",
    ]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["attn_fwd L0 m0"], "'A.hidden L0 m0' is read before it is written"),
        (["embed m0", "free A.hidden L0 m0", "attn_fwd L0 m0"], "is read after it is freed"),
        (["free A.hidden L0 m0"], "'A.hidden L0 m0' is freed before it is written"),
        (["embed m0", *2 * ["free A.hidden L0 m0"]], "'A.hidden L0 m0' is freed twice"),
        (["embed m0", "embed m0"], "'A.hidden L0 m0' is written twice"),
        (["embed m0", "free A.hidden L0 m0", "embed m0"], "'A.hidden L0 m0' is written twice"),
        (["embed m0", "embed m1"], "A0: never freed: A.hidden L0 m0, A.hidden L0 m1"),
        (
            ["embed m0", "attn_fwd L0 m0", "post_send A0>F0.act L0 m0", "free A.rows L0 m0"],
            "'A.rows L0 m0' is freed while it is being sent",
        ),
        (["wait F0>A0.act L0 m0", "wait F0>A0.act L0 m0"], "'A.outputs L0 m0' is written twice"),
    ],
)
def test_slots_live_from_their_write_to_their_free(lines, message):
    with pytest.raises(ScheduleError, match=message):
        slots_live(programs_of(lines, []))


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            ["post_send A0>F0.act L0 m0"],
            "'A0>F0.act L0 m0' needs send_counts, post_send, wait in this order, found post_send",
        ),
        (
            ["post_send A0>F0.grad L0 m0", "post_send A0>F0.grad L0 m0"],
            "'A0>F0.grad L0 m0' needs post_send, wait in this order, found post_send, post_send",
        ),
        (
            ["post_recv F0>A0.act L0 m0", "wait F0>A0.act L0 m0", "wait F0>A0.act L0 m0"],
            "needs post_recv, wait in this order, found post_recv, wait, wait",
        ),
        (["post_recv A0>F0.grad L0 m0"], "needs post_send, wait in this order, found post_recv"),
        (["post_recv F0>A0.act L1 m0"], "'F0>A0.act L1 m0' is no transfer of this group"),
        (["post_recv A1>A0.grad L0 m0"], "'A1>A0.grad L0 m0' is no transfer of this group"),
        (["send_counts A0>F0.act L0 m0"], "A0: 'A0>F0.act L0 m0' needs .*, found send_counts$"),
        ([], "A0: 'A0>F0.act L0 m0' needs send_counts, post_send, wait, found nothing"),
    ],
)
def test_both_ends_of_a_transfer_do_their_part(lines, message):
    with pytest.raises(ScheduleError, match=message):
        transfers_complete(programs_of(lines, []))


def test_both_ends_of_a_channel_keep_one_order():
    posts = ["post_send A0>F0.grad L0 m0", "post_send A0>F0.grad L0 m1"]
    receives = ["post_recv A0>F0.grad L0 m1", "post_recv A0>F0.grad L0 m0"]
    message = r"A0>F0\.grad: message 0 is payload L0 m0 at A0 but payload L0 m1 at F0"
    with pytest.raises(ScheduleError, match=message):
        channels_ordered(programs_of(posts, receives))
    message = r"A0>F0\.grad: message 1 is payload L0 m1 at A0 but missing at F0"
    with pytest.raises(ScheduleError, match=message):
        channels_ordered(programs_of(posts, receives[1:]))


def test_counts_and_payloads_share_the_order_of_a_channel():
    """Messages have no tags: on one channel the second counts would be taken for the payload."""
    sends = [
        "send_counts A0>F0.act L0 m0",
        "post_send A0>F0.act L0 m0",
        "send_counts A0>F0.act L0 m1",
    ]
    receives = [
        "recv_counts A0>F0.act L0 m0",
        "recv_counts A0>F0.act L0 m1",
        "post_recv A0>F0.act L0 m0",
    ]
    message = r"A0>F0\.act: message 1 is payload L0 m0 at A0 but counts L0 m1 at F0"
    with pytest.raises(ScheduleError, match=message):
        channels_ordered(programs_of(sends, receives))


def test_payloads_keep_the_order_of_their_counts():
    """Both ends agree, and no message is taken for another; but a worker that has learned the sizes
    of m0 receives m0 next."""

    def end(counts, post):
        told = [f"{counts} A0>F0.act L0 m{mb}" for mb in (0, 1)]
        return told + [f"{post} A0>F0.act L0 m{mb}" for mb in (1, 0)]

    programs = programs_of(end("send_counts", "post_send"), end("recv_counts", "post_recv"))
    channels_ordered(programs)
    message = "A0, instruction 2: 'A0>F0.act L0 m1' comes before payloads told of earlier"
    with pytest.raises(ScheduleError, match=message):
        payloads_follow_counts(programs)


# The exchange that NCCL punishes and that small messages over gloo hide: each group sends before it
# receives what the other one sends (ray#45594, nccl#479).
SEND_SEND = (
    ["post_send A0>F0.grad L0 m0", "post_recv F0>A0.act L0 m1"],
    ["post_send F0>A0.act L0 m1", "post_recv A0>F0.grad L0 m0"],
)


def test_sends_that_wait_for_each_other_have_no_global_order():
    message = (
        r"no global order of transfers; a cycle: payload L0 m0 on A0>F0\.grad -> "
        r"payload L0 m1 on F0>A0\.act -> payload L0 m0 on A0>F0\.grad$"
    )
    with pytest.raises(ScheduleError, match=message):
        globally_ordered(programs_of(*SEND_SEND))


@pytest.mark.parametrize("rule", [finishes_with_free_channels, finishes_in_launch_order])
def test_sends_that_wait_for_each_other_are_a_deadlock(rule):
    with pytest.raises(ScheduleError) as caught:
        rule(programs_of(*SEND_SEND))
    assert str(caught.value).splitlines() == [
        "deadlock",
        "  A0 stands at 0: post_send A0>F0.grad L0 m0",
        "  F0 stands at 0: post_send F0>A0.act L0 m1",
    ]


def test_receives_posted_in_another_order_than_sends_are_a_deadlock_only_in_launch_order():
    receiver = [
        "post_recv F0>A0.act L0 m0",
        "post_recv F0>A0.grad L0 m0",
        "wait F0>A0.act L0 m0",
        "wait F0>A0.grad L0 m0",
    ]
    sender = [
        "post_send F0>A0.grad L0 m0",
        "post_send F0>A0.act L0 m0",
        "wait F0>A0.act L0 m0",
        "wait F0>A0.grad L0 m0",
    ]
    programs = programs_of(receiver, sender)
    finishes_with_free_channels(programs)
    with pytest.raises(ScheduleError) as caught:
        finishes_in_launch_order(programs)
    assert str(caught.value).splitlines() == [
        "deadlock",
        "  A0 stands at 2: wait F0>A0.act L0 m0",
        "  F0 stands at 2: wait F0>A0.act L0 m0",
    ]


def test_counts_are_a_meeting_too():
    programs = programs_of(
        ["send_counts A0>F0.act L0 m0"], ["post_recv A0>F0.grad L0 m0", "wait A0>F0.grad L0 m0"]
    )
    with pytest.raises(ScheduleError, match=r"A0 stands at 0: send_counts A0>F0\.act L0 m0"):
        finishes_with_free_channels(programs)


def test_summing_counts_takes_its_turn_among_the_transfers():
    waiting = ["post_recv F0>A0.act L0 m0", "reduce_counts L0 m0", "post_recv F0>A0.grad L0 m0"]
    sender = ["post_send F0>A0.grad L0 m0", "post_send F0>A0.act L0 m0"]
    programs = programs_of(waiting, sender, reduce_counts=True)
    finishes_with_free_channels(programs)
    with pytest.raises(ScheduleError, match="A0 stands at 1: reduce_counts L0 m0"):
        finishes_in_launch_order(programs)


@pytest.mark.parametrize("op", ["experts_bwd L0", "attn_bwd L0", "head", "embed_bwd", "head_eval"])
def test_sums_meet_the_micro_batches_in_ascending_order(op):
    with pytest.raises(ScheduleError, match=f"'{op} m0' comes after micro-batch 1"):
        sums_ascend(programs_of([f"{op} m1", f"{op} m0"], []))


@pytest.mark.parametrize(
    "ends",
    [
        ["reduce_grads", "reduce_world"],
        ["reduce_grads", "update", "reduce_world"],
        ["reduce_grads", "reduce_world", "update", "update"],
        ["reduce_grads", "reduce_world", "update", "embed m0"],
        [],
    ],
)
def test_a_training_step_ends_in_three_parts(ends):
    right = ["reduce_grads", "reduce_world", "update"]
    message = "F0: must end with reduce_grads, reduce_world, update"
    with pytest.raises(ScheduleError, match=message):
        step_ends(programs_of(right, ends))


def test_an_evaluation_updates_nothing():
    with pytest.raises(ScheduleError, match="A0: must end with no step end"):
        step_ends(programs_of(["update"], [], training=False))


COLOCATED = ProgramSpec(
    layout=Layout(layers=2, groups=2, direct_residual=True, colocated=True), micro_batches=2
)


def colocated(c0, c1):
    programs = tuple(
        Program(Group.parse(name), tuple(map(parse_instruction, lines)))
        for name, lines in (("C0", c0), ("C1", c1))
    )
    return ProgramSet(COLOCATED, programs)


@pytest.mark.parametrize("schedule", ["ep_1f1b", "ep_overlap", "af_pipe", "serial"])
def test_colocated_programs_of_every_schedule_are_legal(schedule):
    programs = compile_programs(COLOCATED, schedule=schedule, in_flight=2).programs
    assert [str(program.group) for program in programs.programs] == ["C0", "C1"]
    split = replace(COLOCATED, layout=replace(COLOCATED.layout, colocated=False))
    with pytest.raises(ScheduleError, match="programs for C0 C1, expected A0 A1 F0 F1"):
        groups_match(ProgramSet(split, programs.programs))


def test_workers_compute_what_their_two_roles_own():
    with pytest.raises(ScheduleError, match="'experts_fwd L1 m0' belongs to C1"):
        computed_once(colocated(["attn_fwd L0 m0", "experts_fwd L0 m0", "experts_fwd L1 m0"], []))


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            ["exchange A0>F0.act L0 m0"],
            "'A0>F0.act L0 m0' needs exchange_counts, exchange, wait in this order, found exchange",
        ),
        (
            ["exchange F0>A0.grad L0 m0", "wait F0>A0.grad L0 m0", "wait F0>A0.grad L0 m0"],
            "'F0>A0.grad L0 m0' needs exchange, wait in this order, found exchange, wait, wait",
        ),
        (
            ["send_counts A0>F0.act L0 m0"],
            "needs exchange_counts, exchange, wait in this order, found send_counts",
        ),
        (
            ["exchange_counts F0>A1.act L0 m0"],
            "needs send_counts, post_send, wait in this order, found exchange_counts",
        ),
        (["post_send A1>A0.act L1 m0"], "needs post_recv, wait in this order, found post_send"),
        (["exchange A1>F1.act L1 m0"], "'A1>F1.act L1 m0' is no transfer of this group"),
        (["exchange A0>F0.act L1 m0"], "'A0>F0.act L1 m0' is no transfer of this group"),
        (["post_send C0>C1.act L0 m0"], "'C0>C1.act L0 m0' is no transfer of this group"),
        ([], "C0: 'A0>F0.act L0 m0' needs exchange_counts, exchange, wait, found nothing"),
    ],
)
def test_an_all_to_all_is_both_ends_in_one(lines, message):
    with pytest.raises(ScheduleError, match=message):
        transfers_complete(colocated(lines, []))


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["free A.rows L0 m0"], "'A.rows L0 m0' is freed while it is being sent"),
        (["free F.rows L0 m0"], "'F.rows L0 m0' is freed before it is written"),
        (["experts_fwd L0 m0"], "'F.rows L0 m0' is read before it is written"),
        (
            ["wait A0>F0.act L0 m0", "free A.rows L0 m0", "wait A0>F0.act L0 m0"],
            "'A.rows L0 m0' is read after it is freed",
        ),
        (2 * ["wait A0>F0.act L0 m0"], "'F.rows L0 m0' is written twice"),
        (
            ["wait A0>F0.act L0 m0", "free F.rows L0 m0", "experts_fwd L0 m0"],
            "'F.rows L0 m0' is read after it is freed",
        ),
        (
            ["wait A0>F0.act L0 m0", "free A.rows L0 m0", "experts_fwd L0 m0"],
            "never freed: A.hidden L0 m0, A.residual L0 m0, A.saved L0 m0, F.outputs L0 m0",
        ),
    ],
)
def test_an_all_to_all_has_a_slot_at_either_end(lines, message):
    begin = ["embed m0", "attn_fwd L0 m0", "exchange A0>F0.act L0 m0"]
    with pytest.raises(ScheduleError, match=message):
        slots_live(colocated([*begin, *lines], []))


def test_an_error_of_order_names_the_roles_at_the_ends_of_a_channel():
    message = r"F0>A1\.act: message 0 is payload L0 m0 at F0 but payload L0 m1 at A1"
    sends, receives = ["post_send F0>A1.act L0 m0"], ["post_recv F0>A1.act L0 m1"]
    with pytest.raises(ScheduleError, match=message):
        channels_ordered(colocated(sends, receives))


def test_hosts_that_send_before_either_receives_have_no_global_order():
    programs = colocated(
        ["post_send F0>A1.act L0 m0", "exchange A0>F0.act L0 m1", "post_recv A1>F0.grad L0 m1"],
        ["post_send A1>F0.grad L0 m1", "post_recv F0>A1.act L0 m0"],
    )
    with pytest.raises(ScheduleError, match="no global order of transfers; a cycle: "):
        globally_ordered(programs)
