"""Keys, their limits, and fair shares, each by itself."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path

import pytest

from radixray.errors import InvalidRequestError, RateLimitError
from radixray.serve.fair import FairShares
from radixray.serve.http_config import HttpConfig
from radixray.serve.keys import ApiKey, KeyLimits, find_key, read_keys
from radixray.serve.tenants import Tenant


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_key_is_kept_by_its_digest() -> None:
    key = ApiKey.of("alice", "s3cret")
    assert key.digest == hashlib.sha256(b"s3cret").digest()
    assert "s3cret" not in repr(key)
    others = [ApiKey.of(name, name) for name in ("bob", "eve")]
    assert find_key([*others, key], b"s3cret") is key
    assert find_key([key, *others], b"s3cre") is None
    assert find_key([], b"") is None


def test_a_key_file(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    digest = hashlib.sha256(b"B").hexdigest()
    file.write_text(
        f'[keys.alice]\nkey = "A"\nrequests_per_minute = 3\n[keys."b@x.org"]\nsha256 = "{digest}"'
    )
    keys = read_keys(["C"], file, KeyLimits(max_concurrent=4))
    assert {key.name for key in keys} == {"key-1", "alice", "b@x.org"}
    alice, bob = find_key(keys, b"A"), find_key(keys, b"B")
    assert alice is not None
    assert bob is not None
    assert alice.limits == KeyLimits(max_concurrent=4, requests_per_minute=3)
    assert bob.limits == KeyLimits(max_concurrent=4)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("keys = 3", "object"),
        ("[keys.a]", "one of key and sha256"),
        ('[keys.a]\nkey = "x"\nsha256 = "y"', "one of key and sha256"),
        ('[keys.a]\nsha256 = "abc"', "64 hexadecimal digits"),
        ('[keys.a]\nsha256 = "abcd"', "64 hexadecimal digits"),
        ('[keys.a]\nkey = "x y"', "spaces"),
        ('[keys.a]\nkey = ""', "empty"),
        ('[keys."a b"]\nkey = "x"', "a key's name|name must be"),
        ('[keys.a]\nkey = "x"\n[keys.b]\nkey = "x"', "the same"),
        ('[keys.a]\nkey = "x"\nmax_concurrent = 0', "max_concurrent must be at least 1"),
        ('[keys.a]\nkey = "x"\nmax_conc = 1', "max_conc"),
        ("[keys", "cannot be read"),
    ],
)
def test_bad_key_files(tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / "keys.toml"
    file.write_text(text)
    with pytest.raises(InvalidRequestError, match=why):
        read_keys([], file, KeyLimits())


def test_no_such_key_file(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="cannot be read") as caught:
        read_keys([], tmp_path / "none.toml", KeyLimits())
    assert caught.value.param == "api_key_file"


@pytest.mark.parametrize("name", ["body_timeout_s", "send_timeout_s", "max_body_bytes"])
def test_bad_settings(name: str) -> None:
    with pytest.raises(InvalidRequestError, match=name):
        HttpConfig(**{name: 0})


def test_concurrency() -> None:
    tenant = Tenant("a", KeyLimits(max_concurrent=2))
    tenant.enter()
    tenant.enter()
    with pytest.raises(RateLimitError, match="2 at once"):
        tenant.enter()
    tenant.leave()
    tenant.enter()


def test_requests_a_minute(clock: Clock) -> None:
    tenant = Tenant("a", KeyLimits(requests_per_minute=6), clock)
    for _ in range(6):
        tenant.enter()
    with pytest.raises(RateLimitError, match="6 requests a minute") as caught:
        tenant.enter()
    assert caught.value.retry_after_s == pytest.approx(10)
    clock.now += 10.001
    tenant.enter()
    with pytest.raises(RateLimitError):
        tenant.enter()
    clock.now += 3600
    for _ in range(6):
        tenant.enter()
    with pytest.raises(RateLimitError):
        tenant.enter()


def test_tokens_a_minute(clock: Clock) -> None:
    tenant = Tenant("a", KeyLimits(tokens_per_minute=600), clock)
    tenant.ask(500)
    with pytest.raises(
        RateLimitError, match="600 tokens a minute, and the prompt has 200"
    ) as caught:
        tenant.ask(200)
    assert caught.value.retry_after_s == pytest.approx(10)
    tenant.spend(400)  # what was promised is generated, and paid for later
    with pytest.raises(RateLimitError) as caught:
        tenant.enter()
    assert caught.value.retry_after_s == pytest.approx(30.1)
    clock.now += 30.2
    tenant.enter()
    clock.now += 60
    tenant.ask(5000)  # more than a minute holds waits for a full minute, not for ever
    with pytest.raises(RateLimitError):
        tenant.enter()


async def run(shares: FairShares, name: str, done: list[str], go: asyncio.Event) -> None:
    async with shares.slot(name):
        await go.wait()
        await asyncio.sleep(0)
        done.append(name)


async def test_a_crowd_does_not_starve_another() -> None:
    shares, go, done = FairShares(4), asyncio.Event(), list[str]()
    crowd = [asyncio.create_task(run(shares, "crowd", done, go)) for _ in range(500)]
    await asyncio.sleep(0)
    assert shares.waiting("crowd") == 496
    few = [asyncio.create_task(run(shares, "few", done, go)) for _ in range(3)]
    await asyncio.sleep(0)
    go.set()
    await asyncio.gather(*crowd, *few)
    assert done.index("few") <= 4
    assert [i for i, name in enumerate(done) if name == "few"][-1] <= 4 + 2 * 3
    assert shares.waiting("crowd") == shares.waiting("few") == 0


async def test_three_take_turns() -> None:
    shares, go, done = FairShares(1), asyncio.Event(), list[str]()
    tasks = [asyncio.create_task(run(shares, name, done, go)) for name in "aaabbbccc"]
    await asyncio.sleep(0)
    go.set()
    await asyncio.gather(*tasks)
    assert "".join(done) == "abcabcabc"


async def test_free_slots_are_for_anyone() -> None:
    shares, go, done = FairShares(8), asyncio.Event(), list[str]()
    tasks = [asyncio.create_task(run(shares, "a", done, go)) for _ in range(8)]
    await asyncio.sleep(0)
    assert shares.waiting("a") == 0
    go.set()
    await asyncio.gather(*tasks)


async def test_the_cancelled_leave_no_trace() -> None:
    for seed in range(50):
        shares, go, done = FairShares(2), asyncio.Event(), list[str]()
        tasks = [asyncio.create_task(run(shares, "ab"[i % 2], done, go)) for i in range(12)]
        await asyncio.sleep(0)
        go.set()
        for i in range(12):
            if (seed * 7 + i * 5) % 3 == 0:
                tasks[i].cancel()
            if i % 4 == seed % 4:
                await asyncio.sleep(0)
        await asyncio.gather(*tasks, return_exceptions=True)
        assert shares.waiting("a") == shares.waiting("b") == 0
        async with asyncio.timeout(1), shares.slot("a"), shares.slot("b"):
            pass  # both slots are free again


async def test_without_slots_nobody_waits() -> None:
    shares = FairShares(None)
    async with shares.slot("a"), shares.slot("a"):
        assert shares.waiting("a") == 0


async def test_a_turn_that_comes_too_late_is_passed_on() -> None:
    shares, go = FairShares(1), asyncio.Event()
    go.set()
    async with shares.slot("a"):
        waiter = asyncio.create_task(run(shares, "b", [], go))
        await asyncio.sleep(0)
        assert shares.waiting("b") == 1
    assert shares.waiting("b") == 0, "its turn has come, and it does not know yet"
    waiter.cancel()
    await asyncio.gather(waiter, return_exceptions=True)
    async with asyncio.timeout(1), shares.slot("a"):
        pass
