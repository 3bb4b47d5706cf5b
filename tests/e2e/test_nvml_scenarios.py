"""What a broken GPU or driver does to a real exporter: its neighbours and the page do not notice.

The scenarios run side by side, each in an exporter of its own over four stub GPUs, of which the
second breaks.
"""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from demo.process import answers, get, wait_for
from demo.stack import Exporter
from tests import nvmlstub
from tests.exporter.nvml.stub import Scenario

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

GPUS = ("0", "1", "2", "3")
BROKEN = "1"
FINE = {"0", "2", "3"}
# Between two scrapes. An NVML sample is a second apart.
PAUSE_SECONDS = 0.1
# What the issue of a broken driver may cost: a page in time, and its child back.
PAGE_SECONDS = 0.1
BACK_SECONDS = 10.0

SCENARIOS = {
    "lost": "* 1 15",
    "hang": "nvmlDeviceGetPowerUsage 1 hang",
    "segfault": "nvmlDeviceGetTemperature 1 crash",
    "segfaults again and again": "nvmlDeviceGetTemperature 1 crash",
}


@dataclass(frozen=True)
class Page:
    """One scrape: when, how long it took, and what it said."""

    at: float
    seconds: float
    ready: bool
    values: dict[tuple[str, str], float]

    def gpus(self, name: str) -> dict[str, float]:
        """Return the value of series *name* by GPU."""
        return {gpu: value for (series, gpu), value in self.values.items() if series == name}

    @property
    def restarts(self) -> float:
        """How often the NVML worker was replaced."""
        return self.values["rankskew_nvml_worker_restarts_total", ""]

    @property
    def worker_up(self) -> bool:
        """Whether the NVML worker was heard lately."""
        return self.values["rankskew_nvml_worker_up", ""] == 1


@dataclass
class Story:
    """What was scraped from one exporter; *broken_at* and *mended_at* as in Page.at."""

    pages: list[Page] = field(default_factory=list)
    broken_at: float = 0.0
    mended_at: float = 0.0

    def first(self, condition: Callable[[Page], bool], since: float) -> Page | None:
        """Return the first page from *since* on for which *condition* holds."""
        return next((page for page in self.pages if page.at >= since and condition(page)), None)


def scrape(exporter: Exporter) -> Page:
    started = time.monotonic()
    text = get(f"{exporter.url}/metrics").decode()
    seconds = time.monotonic() - started
    values = {
        (sample.name, sample.labels.get("gpu", "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith(("rankskew_gpu", "rankskew_nvml"))
    }
    return Page(started, seconds, answers(f"{exporter.url}/-/ready"), values)


def ups(*up: str) -> Callable[[Page], bool]:
    """Hold for a page on which exactly the GPUs *up* answer."""
    return lambda page: page.gpus("rankskew_gpu_up") == {g: float(g in up) for g in GPUS}


def well(page: Page) -> bool:
    """Hold for a page with all GPUs, as read by a worker that lives; not by one that died since."""
    return page.worker_up and ups(*GPUS)(page)


def tell(name: str, directory: Path, library: Path) -> Story:
    """Break the second GPU of a running exporter, mend it, and return what was seen."""
    lines = SCENARIOS[name]
    directory.mkdir()
    scenario = Scenario(directory / "scenario.txt")
    environment = nvmlstub.environment(library, len(GPUS), scenario.path)
    story = Story()
    over = threading.Event()
    with Exporter(directory, flags=["--path.state="], environment=environment) as exporter:

        def watch() -> None:
            while not over.wait(PAUSE_SECONDS):
                story.pages.append(scrape(exporter))

        def seen(condition: Callable[[Page], bool], since: float) -> Page | None:
            return wait_for(lambda: story.first(condition, since), 30)

        watching = threading.Thread(target=watch)
        watching.start()
        try:
            seen(ups(*GPUS), 0.0)
            story.broken_at = time.monotonic()
            scenario.play(lines)
            if name == "segfault":
                seen(lambda page: page.restarts > 0, story.broken_at)
            elif "crash" in lines:
                seen(lambda page: not page.ready, story.broken_at)
            else:
                seen(ups(*FINE), story.broken_at)
                time.sleep(2.0)  # Its neighbours go on meanwhile.
            scenario.play()
            story.mended_at = time.monotonic()
            seen(well, story.mended_at)
        finally:
            over.set()
            watching.join()
    return story


@pytest.fixture(scope="module")
def stories(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Story]]:
    """Every scenario, played to its end."""
    root = tmp_path_factory.mktemp("scenarios")
    library = nvmlstub.build(root)
    with ThreadPoolExecutor() as threads:
        futures = {
            name: threads.submit(tell, name, root / name.replace(" ", "-"), library)
            for name in SCENARIOS
        }
        yield {name: future.result() for name, future in futures.items()}


@pytest.mark.parametrize("name", SCENARIOS)
def test_page_comes_in_time_throughout(stories: dict[str, Story], name: str) -> None:
    """Whatever the driver does, /metrics answers in a tenth of a second, all the time.

    The slowest page in a hundred is left out: these machines stop for longer by themselves.
    """
    seconds = sorted(page.seconds for page in stories[name].pages)

    assert len(seconds) > 10
    assert seconds[int(len(seconds) * 0.99) - 1] < PAGE_SECONDS


@pytest.mark.parametrize("name", ["lost", "hang"])
def test_broken_gpu_is_down_and_its_neighbours_flow_on(
    stories: dict[str, Story], name: str
) -> None:
    """The broken GPU loses its readings and shows up 0; the others miss not one page."""
    story = stories[name]
    down = story.first(ups(*FINE), story.broken_at)
    assert down is not None
    while_down = [page for page in story.pages if down.at <= page.at < story.mended_at]

    assert len(while_down) > 5
    assert all(set(page.gpus("rankskew_gpu_power_watts")) == FINE for page in while_down)
    assert all(BROKEN not in page.gpus("rankskew_gpu_memory_used_bytes") for page in while_down)
    before = [page for page in story.pages if story.broken_at <= page.at < story.mended_at]
    assert all(set(page.gpus("rankskew_gpu_power_watts")) >= FINE for page in before)
    samples = {page.values["rankskew_nvml_sample_timestamp_seconds", ""] for page in while_down}
    assert len(samples) > 1


@pytest.mark.parametrize("name", SCENARIOS)
def test_broken_gpu_comes_back(stories: dict[str, Story], name: str) -> None:
    """Once the driver is well again all GPUs are back in ten seconds, with all their readings."""
    story = stories[name]
    back = story.first(well, story.mended_at)

    assert back is not None
    assert back.at - story.mended_at < BACK_SECONDS
    assert set(back.gpus("rankskew_gpu_power_watts")) == set(GPUS)


@pytest.mark.parametrize("name", ["hang", "segfault"])
def test_child_is_back_in_ten_seconds(stories: dict[str, Story], name: str) -> None:
    """A driver that hangs or crashes costs its process, and another takes over."""
    story = stories[name]
    back = story.first(lambda page: page.restarts > 0 and page.worker_up, story.broken_at)

    assert back is not None
    assert back.at - story.broken_at < BACK_SECONDS


def test_ready_tells_the_truth(stories: dict[str, Story]) -> None:
    """A node with a lost GPU is ready; one whose GPUs nobody reads is not, until they are read."""
    lost, crashing = stories["lost"], stories["segfaults again and again"]

    assert all(page.ready for page in lost.pages if page.at >= lost.broken_at)
    unread = [page for page in crashing.pages if not page.gpus("rankskew_gpu_up")]
    while_broken = [page for page in unread if page.at > crashing.broken_at]
    assert len(while_broken) > 1
    # Whether it is ready is asked after the page: the GPUs may be back just in between.
    assert not any(page.ready for page in while_broken[:-1])
    assert crashing.pages[-1].ready
