from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor, nn

from gmmc.evaluations import masking
from gmmc.evaluations.attacks import campaign as campaigns
from gmmc.evaluations.attacks.campaign import Campaign, Store, content_key
from gmmc.evaluations.attacks.gradient import Margin
from gmmc.evaluations.attacks.target import Target
from gmmc.evaluations.attacks.threats import Threat
from gmmc.evaluations.result import Result

COUNT = 10
EIGHT = Threat.linf(8)


class Brightness(nn.Module):
    """Bright or dark; an image of brightness ½ + d is broken by an ε over d."""

    def forward(self, x: Tensor) -> Tensor:
        light = x.mean((1, 2, 3)) - 0.5
        return torch.stack([light, -light], 1)


@dataclass
class Darken:
    """Breaks a bright image whenever ε allows; remembers the rows it was given."""

    tries: int = 1
    cost: int = 1
    fails_after: int = 1000  # attempts
    seen: list[Tensor] = field(default_factory=list)

    def attempt(
        self, target: Target, x: Tensor, y: Tensor, threat: Threat, number: int, source: torch.Generator
    ) -> Tensor:
        if len(self.seen) >= self.fails_after:
            raise KeyboardInterrupt
        self.seen.append(x.clone())
        return threat.project(x - threat.eps, x)

    @property
    def images(self) -> int:
        return sum(map(len, self.seen))


@dataclass
class Cheat:
    """Gives whatever it likes."""

    move: Callable[[Tensor], Tensor]
    tries: int = 1
    cost: int = 1

    def attempt(
        self, target: Target, x: Tensor, y: Tensor, threat: Threat, number: int, source: torch.Generator
    ) -> Tensor:
        return self.move(x)


@pytest.fixture(autouse=True)
def _saved_at_once(monkeypatch):
    monkeypatch.setattr(campaigns, "SAVE_EVERY", 0.0)


def bright_images() -> Tensor:
    """Image i is i + ½ 255ths over the boundary."""
    return (0.5 + (torch.arange(COUNT) + 0.5) / 255)[:, None, None, None].expand(COUNT, 1, 4, 4).clone()


def make_campaign(
    store: Store | None = None, seed: int = 0, module: nn.Module | None = None, batch: int = 3
) -> Campaign:
    target = Target(module or Brightness())
    target.batch = batch
    labels = torch.zeros(COUNT, dtype=torch.long)
    return Campaign(target, bright_images(), labels, seed, store or Store(None, "key"))


class TestCampaign:
    def test_counts_what_is_broken(self):
        broken = make_campaign().run("darken", Darken(), EIGHT)
        assert broken.tolist() == [True] * 8 + [False] * 2

    def test_what_is_wrong_anyway_is_broken_and_not_attacked(self):
        campaign, attack = make_campaign(), Darken()
        campaign.labels[4:6] = 1
        campaign = Campaign(campaign.target, campaign.images, campaign.labels, 0, campaign.store)
        harmless = campaign.run("nothing", Cheat(lambda x: x), EIGHT)
        assert torch.equal(harmless, ~campaign.right)
        broken = campaign.run("darken", attack, EIGHT)
        assert broken[4:6].all()
        assert attack.images == COUNT - 2

    def test_an_attack_cannot_mend_an_image(self):
        campaign = make_campaign()
        campaign.labels[:] = 1  # all are misnamed, and darker images would not be
        campaign = Campaign(campaign.target, campaign.images, campaign.labels, 0, campaign.store)
        assert campaign.run("darken", Darken(), Threat.linf(64)).all()

    def test_later_attempts_spare_what_is_broken(self):
        attack = Darken(tries=3)
        make_campaign(batch=COUNT).run("darken", attack, EIGHT)
        assert [len(x) for x in attack.seen] == [10, 2, 2]

    def test_no_attempt_follows_once_all_are_broken(self):
        attack = Darken(tries=3)
        make_campaign(batch=COUNT).run("darken", attack, Threat.linf(64))
        assert len(attack.seen) == 1

    def test_what_is_broken_already_is_not_attacked_within_a_larger_ball(self):
        campaign, attack = make_campaign(), Darken()
        smaller = campaign.run("darken", attack, Threat.linf(4))
        attack.seen.clear()
        larger = campaign.run("darken", attack, EIGHT, smaller)
        assert attack.images == COUNT - 4
        assert (larger | ~smaller).all()

    def test_tells_how_far_it_is(self):
        told = []
        campaign = make_campaign()
        campaign.on_progress = lambda done, status: told.append((done, status))
        attack = Darken(tries=2, cost=5)
        campaign.run("darken", attack, EIGHT)
        assert [done for done, _ in told] == sorted(done for done, _ in told)
        assert told[-1] == (campaign.work(attack), "linf_8/darken: 2 of 10 hold")
        assert campaign.work(attack) == 100

    def test_batches_do_not_change_what_a_seedless_attack_breaks(self):
        whole, parts = (make_campaign(batch=size).run("margin", Margin(5, 1), EIGHT) for size in (COUNT, 3))
        assert torch.equal(whole, parts)


class TestRandomness:
    """Each attempt at each batch draws numbers of its own, which names alone decide."""

    def drawn(self, name: str = "draw", threat: Threat = EIGHT, seed: int = 0) -> list[float]:
        numbers = []

        class Draw(Darken):
            def attempt(self, target, x, y, threat, number, source):
                numbers.append(torch.rand((), generator=source, dtype=torch.float64).item())
                return x

        make_campaign(seed=seed).run(name, Draw(tries=3), threat)
        return numbers

    def test_attempts_and_batches_share_no_numbers(self):
        numbers = self.drawn()
        assert len(set(numbers)) == len(numbers) == 3 * 4
        assert self.drawn() == numbers

    @pytest.mark.parametrize("change", [{"name": "other"}, {"threat": Threat.linf(4)}, {"seed": 1}])
    def test_another_attack_threat_or_seed_draws_others(self, change):
        assert not {*self.drawn()} & {*self.drawn(**change)}


class TestCheats:
    @pytest.mark.parametrize(
        "move",
        [
            torch.zeros_like,  # too far
            lambda x: x * torch.nan,
            lambda x: x - 2,
            lambda x: x.masked_fill(x > 0, -torch.inf),
        ],
        ids=["too far", "NaN", "out of range", "infinite"],
    )
    def test_are_not_believed(self, move):
        campaign = make_campaign()
        assert not campaign.run("cheat", Cheat(move), EIGHT).any()
        assert list(campaign.store.notes) == [
            "linf_8/cheat moved images further than allowed; those do not count"
        ]

    def test_one_of_them_does_not_cost_the_others(self):
        def first_too_far(x: Tensor) -> Tensor:
            moved = x - EIGHT.eps
            moved[0] = 0
            return moved

        campaign = make_campaign(batch=COUNT)
        broken = campaign.run("cheat", Cheat(first_too_far), EIGHT)
        assert broken.tolist() == [False] + [True] * 7 + [False] * 2
        assert campaign.store.notes

    def test_the_honest_get_no_note(self):
        campaign = make_campaign()
        campaign.run("darken", Darken(), EIGHT)
        assert not campaign.store.notes

    def test_logits_that_are_none_count_as_broken(self):
        class Fragile(Brightness):
            def forward(self, x: Tensor) -> Tensor:
                return super().forward(x).where((x.mean((1, 2, 3)) > 0.5)[:, None], torch.nan)

        assert (
            make_campaign(module=Fragile()).run("darken", Darken(), EIGHT).tolist()
            == [True] * 8 + [False] * 2
        )


class TestInterrupted:
    def test_goes_on_from_what_the_file_holds(self, tmp_path):
        path = tmp_path / "work" / "campaign"
        whole = make_campaign().run("darken", Darken(), EIGHT)
        with pytest.raises(KeyboardInterrupt):
            make_campaign(Store(path, "key")).run("darken", Darken(fails_after=2), EIGHT)
        again = Darken()
        broken = make_campaign(Store(path, "key")).run("darken", again, EIGHT)
        assert torch.equal(broken, whole)
        assert again.images == COUNT - 6  # two batches of three were done

    def test_a_random_attack_goes_on_as_if_nothing_had_happened(self, tmp_path):
        @dataclass
        class Random(Darken):
            def attempt(self, target, x, y, threat, number, source):
                super().attempt(target, x, y, threat, number, source)
                shift = torch.rand(len(x), 1, 1, 1, generator=source) * threat.eps
                return threat.project(x - shift, x)

        whole = make_campaign().run("random", Random(), EIGHT)
        assert 0 < whole.sum() < 8
        with pytest.raises(KeyboardInterrupt):
            make_campaign(Store(tmp_path / "file", "key")).run("random", Random(fails_after=2), EIGHT)
        assert torch.equal(
            make_campaign(Store(tmp_path / "file", "key")).run("random", Random(), EIGHT), whole
        )

    def test_what_is_finished_is_not_attacked_again(self, tmp_path):
        first = make_campaign(Store(tmp_path / "file", "key")).run("darken", Darken(), EIGHT)
        attack = Darken(fails_after=0)
        campaign = make_campaign(Store(tmp_path / "file", "key"))
        assert torch.equal(campaign.run("darken", attack, EIGHT), first)
        assert campaign.done == campaign.work(attack)

    @pytest.mark.parametrize(("name", "threat"), [("other", EIGHT), ("darken", Threat.linf(4))])
    def test_another_attack_or_threat_is_another_place(self, tmp_path, name, threat):
        make_campaign(Store(tmp_path / "file", "key")).run("darken", Darken(), EIGHT)
        attack = Darken()
        make_campaign(Store(tmp_path / "file", "key")).run(name, attack, threat)
        assert attack.images == COUNT


class TestStore:
    def test_keeps_its_tensors(self, tmp_path):
        Store(tmp_path / "file", "key").put("a", torch.arange(3))
        assert torch.equal(Store(tmp_path / "file", "key").tensors["a"], torch.arange(3))

    def test_another_key_begins_anew(self, tmp_path):
        Store(tmp_path / "file", "key").put("a", torch.arange(3))
        assert Store(tmp_path / "file", "other").tensors == {}

    @pytest.mark.parametrize("damage", [b"", b"nonsense", None])
    def test_a_damaged_file_only_costs_time(self, tmp_path, damage):
        path = tmp_path / "file"
        Store(path, "key").put("a", torch.arange(30))
        raw = path.read_bytes()
        path.write_bytes(raw[:-9] if damage is None else damage)
        assert Store(path, "key").tensors == {}

    def test_is_not_written_at_every_turn(self, tmp_path, monkeypatch):
        monkeypatch.setattr(campaigns, "SAVE_EVERY", 3600.0)
        store = Store(tmp_path / "file", "key")
        store.put("a", torch.arange(3))
        assert not (tmp_path / "file").exists()
        store.save()
        assert Store(tmp_path / "file", "key").tensors.keys() == {"a"}

    def test_keeps_doubts(self, tmp_path):
        store = Store(tmp_path / "file", "key")
        store.notes["a doubt"] = None
        store.save()
        assert list(Store(tmp_path / "file", "key").notes) == ["a doubt"]
        assert not Store(tmp_path / "file", "another").notes

    def test_without_a_file(self):
        store = Store(None, "key")
        store.put("a", torch.arange(3))
        store.save()
        assert store.tensors.keys() == {"a"}


def test_keys_differ_with_what_they_are_made_of():
    weights = torch.randn(4, generator=torch.Generator().manual_seed(0))
    keys = [
        content_key(0, "quick", weights),
        content_key(1, "quick", weights),
        content_key(0, "full", weights),
        content_key(0, "quick", weights + 1e-7),
        content_key(0, "quick", weights.to(torch.bfloat16)),
        content_key(0, "quick"),
    ]
    assert len(set(keys)) == len(keys)
    assert content_key(0, "quick", weights.clone()) == keys[0]


# --- signs that attacks failed, by hand ---------------------------------------------------------------


def by_hand(
    *,
    values: dict[str, float] | None = None,
    steps: tuple[float, ...] = (0.5, 0.5, 0.4),
    pgd: tuple[float | None, ...] = (0.5, 0.0),
    worst: tuple[float, ...] = (0.45, 0.0),
) -> dict[str, bool]:
    """The checks of a result that is sound but for what is given."""
    curves = {
        "linf": {"eps": [8.0, 64.0], "accuracy": {"paper_pgd": pgd, "worst_case": worst}},
        "steps": {"steps": [10, 40, 200][: len(steps)], "accuracy": steps},
    }
    return masking.checks(Result({"zero_gradient_share": 0.0, **(values or {})}, {}, curves=curves))


class TestChecksByHand:
    def doubts(self, **changed) -> list[str]:
        return [text for text, doubt in by_hand(**changed).items() if doubt]

    def test_nothing_to_doubt(self):
        assert self.doubts() == []
        assert len(by_hand()) == 5

    @pytest.mark.parametrize("attack", ["square", "transfer"])
    @pytest.mark.parametrize("threat", ["linf_8", "l2_0.5"])
    def test_a_black_box_beats_a_white_one(self, attack, threat):
        values = {f"{threat}/{attack}/accuracy": 0.3, f"{threat}/apgd_ce/accuracy": 0.5}
        (doubt,) = self.doubts(values=values)
        assert "leaves 30.0%" in doubt
        assert "50.0%" in doubt
        turned = dict(zip(values, reversed(values.values()), strict=True))
        assert self.doubts(values=turned) == []

    def test_more_steps_leave_more(self):
        (doubt,) = self.doubts(steps=(0.5, 0.4, 0.6))
        assert doubt == "PGD with more steps leaves 50.0% after 10, 40.0% after 40, 60.0% after 200"
        assert self.doubts(steps=(0.5,)) == []

    def test_what_holds_where_nothing_should(self):
        assert "PGD by the paper’s protocol leaves 10.0% at ε = 64/255" in self.doubts(pgd=(0.5, 0.1))[0]
        both = self.doubts(pgd=(0.5, 0.3), worst=(0.45, 0.3))
        assert any("the worst case leaves 30.0%" in doubt for doubt in both)

    def test_the_worst_case_is_far_under_pgd(self):
        assert self.doubts(worst=(0.2, 0.0)) == ["the worst case is 20.0% at 8/255, where PGD says 50.0%"]
        assert self.doubts(pgd=(None, 0.0), worst=(0.2, 0.0)) == []

    def test_one_zero_gradient_is_one_too_many(self):
        assert "zero for 0.1% of the images" in self.doubts(values={"zero_gradient_share": 0.001})[0]
