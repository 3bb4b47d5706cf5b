"""Tests of patches: what they replace is put back as it was, in the order it has to be."""

import copy
import json
import pickle
import types
from collections.abc import Callable
from typing import Any

import pytest

from rank_probe.guest.guard import failures
from rank_probe.guest.patches import Patches, attaching


class Base:
    def greet(self) -> str:
        return "hello"


class Inherits(Base):
    pass


def louder(original: Callable[..., str]) -> Any:
    def greet(*args: Any) -> str:
        return original(*args).upper()

    return greet


def test_inherited_method_is_taken_away_again() -> None:
    """The class has no attribute of its own afterwards, so a later patch of its base is seen."""
    patches = Patches()
    patches.wrap(Inherits, "greet", louder)
    assert Inherits().greet() == "HELLO"
    patches.undo()

    assert "greet" not in vars(Inherits)
    assert Inherits().greet() == "hello"


def test_method_of_one_object_is_its_classes_again() -> None:
    """Patching an instance leaves no attribute on it."""
    patched, other = Base(), Base()
    patches = Patches()
    patches.wrap(patched, "greet", louder)
    assert (patched.greet(), other.greet()) == ("HELLO", "hello")
    patches.undo()

    assert vars(patched) == {}


def test_what_the_class_stores_is_put_back() -> None:
    """Not what asking for it gives: a static method would come back as one that takes self."""

    class Holder:
        @staticmethod
        def greet(name: str) -> str:
            return f"hello {name}"

    stored = vars(Holder)["greet"]
    patches = Patches()
    patches.wrap(Holder, "greet", lambda original: lambda _self, name: original(name).upper())
    patches.undo()

    assert vars(Holder)["greet"] is stored
    assert Holder().greet("you") == "hello you"


def test_patches_on_one_place_come_off_last_first() -> None:
    """Two patches of the same method leave the original."""
    patches = Patches()
    for _ in range(2):
        patches.wrap(Base, "greet", lambda original: lambda self: original(self) + "!")
    assert Base().greet() == "hello!!"
    patches.undo()

    assert Base().greet() == "hello"


def test_what_others_wrapped_around_ours_later_stays() -> None:
    """Only what is still ours is restored, also where the class had no method of its own."""

    class Own:
        def greet(self) -> str:
            return "hello"

    class Inherited(Own):
        pass

    ours, theirs = Patches(), Patches()
    for owner in (Inherited, Own):
        ours.wrap(owner, "greet", louder)
        theirs.wrap(owner, "greet", lambda original: lambda self: original(self) + "?")
    ours.undo()

    assert (Own().greet(), Inherited().greet()) == ("HELLO?", "HELLO?")


def test_undo_that_fails_costs_no_other() -> None:
    """It is counted; what somebody else took away already is no failure."""
    patched, before = Base(), failures.count
    patches = Patches()
    patches.wrap(Base, "greet", louder)
    patches.wrap(patched, "greet", louder)
    patches.on_undo(lambda: 1 / 0)
    del patched.greet
    patches.undo()

    assert Base().greet() == "hello"
    assert failures.count == before + 1


def test_patches_of_a_part_that_fails_half_way_are_undone() -> None:
    """Nobody would know of them any more."""

    @attaching
    def attach(patches: Patches, name: str) -> None:
        patches.wrap(Base, name, louder)
        raise ValueError(name)

    with pytest.raises(ValueError, match="greet"):
        attach("greet")

    assert Base().greet() == "hello"


class Trained(Base):
    """Module level, so that pickle finds it."""


def test_copy_of_a_patched_object_has_methods_of_its_own() -> None:
    """A trainer that is pickled or deep-copied while it is timed saves itself, not the first."""
    patches, trained = Patches(), Trained()
    patches.wrap(trained, "greet", louder)
    for copied in (copy.deepcopy(trained), pickle.loads(pickle.dumps(trained))):
        greet: Any = copied.greet
        assert greet.__self__ is copied
    patches.undo()

    assert vars(trained) == {}


def test_function_is_pickled_by_the_name_of_its_place() -> None:
    """Where its module imported it from, the original stands."""
    place: Any = types.ModuleType("place")
    place.loads = json.loads
    patches = Patches()
    patches.wrap(place, "loads", lambda original: lambda *args: original(*args))
    name = place.loads.__module__, place.loads.__qualname__
    patches.undo()

    assert name == ("place", "loads")
    assert place.loads is json.loads
