"""`BlockManager` against a model that keeps plain sets, under any order of calls."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from nanoserve.sched.block_manager import BlockManager

NAMES = [bytes([index]) for index in range(6)]


class BlockManagerMachine(RuleBasedStateMachine):
    """Tables grow, share, and go away; the model says who holds what."""

    @initialize(num_blocks=st.integers(1, 12))
    def start(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.manager = BlockManager(num_blocks, block_size=4)
        self.tables: list[list[int]] = []
        self.block_of: dict[bytes, int] = {}  # the model's prefix cache
        self.release_order: list[int] = []  # the model's unowned named blocks, oldest first

    @rule(num_wanted=st.integers(0, 12))
    def allocate(self, num_wanted: int) -> None:
        num_free = self.manager.num_free_blocks
        num_allocated = min(num_wanted, self.manager.num_available_blocks)
        evicted = self.release_order[: max(0, num_allocated - num_free)]

        table = self.manager.allocate(num_allocated)

        assert not set(table) & self.held()
        assert set(evicted) == set(table) & set(self.release_order)
        self.release_order = self.release_order[len(evicted) :]
        self.block_of = {k: v for k, v in self.block_of.items() if v not in evicted}
        self.tables.append(table)

    @precondition(lambda self: any(self.tables))
    @rule(data=st.data(), name=st.sampled_from(NAMES))
    def register(self, data: st.DataObject, name: bytes) -> None:
        table = data.draw(st.sampled_from([table for table in self.tables if table]))
        block_id = data.draw(st.sampled_from(table))

        self.manager.register(block_id, name)

        if name not in self.block_of and block_id not in self.block_of.values():
            self.block_of[name] = block_id

    @rule(names=st.permutations(NAMES))
    def take_prefix(self, names: list[bytes]) -> None:
        hits = self.manager.find_prefix(names)
        num_left = self.manager.num_available_beside(hits)

        self.manager.take(hits)

        assert hits == self.expected_hits(names)
        assert self.manager.num_available_blocks == num_left
        self.release_order = [block for block in self.release_order if block not in hits]
        self.tables.append(hits)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        table = self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1)))
        block_ids = list(reversed(table))

        self.manager.release(table)

        unowned = [block for block in block_ids if block not in self.held()]
        self.release_order += [block for block in unowned if block in self.block_of.values()]

    def held(self) -> set[int]:
        return {block_id for table in self.tables for block_id in table}

    def expected_hits(self, names: list[bytes]) -> list[int]:
        unknown = [index for index, name in enumerate(names) if name not in self.block_of]
        return [self.block_of[name] for name in names[: min(unknown, default=len(names))]]

    @invariant()
    def the_books_agree(self) -> None:
        self.manager.check_integrity(self.tables)
        assert self.manager.num_used_blocks == len(self.held())
        assert self.manager.num_cached_blocks == len(self.release_order)
        total = self.manager.num_free_blocks + len(self.release_order) + len(self.held())
        assert total == self.num_blocks


TestBlockManagerMachine = BlockManagerMachine.TestCase
TestBlockManagerMachine.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)
