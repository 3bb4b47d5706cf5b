"""The operator's socket: orders for every rank on the node, and for its GPUs."""

from dataclasses import dataclass

from fastapi import FastAPI, Response
from fastapi.responses import PlainTextResponse

from exporter.nvml.supervisor import NvmlSupervisor
from exporter.operator.levels import Orders, everybodys
from exporter.operator.orders import (
    CONTROL_PATH,
    GPUS_PATH,
    GpuOrder,
    Order,
)
from exporter.operator.refusals import REFUSALS, Ordered, say_what_is_wrong
from exporter.web.health import FAILED, WhyNot, health_answer
from rank_probe.version import __version__


@dataclass(frozen=True, slots=True)
class GpuAnswer:
    """Whether the GPUs are *released* by now."""

    released: bool


def operator_app(orders: Orders, gpus: NvmlSupervisor | None, why_not_healthy: WhyNot) -> FastAPI:
    """Return the application. *gpus* is None if no collector needs the GPUs.

    Anyone who can open the socket may give every order.
    """
    app = FastAPI(
        title="rankskew operator",
        summary="Orders from the node's operator. Not a public API.",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    say_what_is_wrong(app, f"POST to {CONTROL_PATH} and {GPUS_PATH}, and GET of /-/healthy")

    @app.post(CONTROL_PATH, responses=REFUSALS)
    async def control(order: Order) -> Ordered:
        """Set how much the probes of a job's ranks on this node time."""
        return Ordered(orders.give(order, everybodys))

    if gpus is not None:

        @app.post(GPUS_PATH, responses=REFUSALS)
        async def gpu_order(order: GpuOrder) -> GpuAnswer:
            """Release the GPUs for a while, or read them again."""
            if order.action == "release":
                gpus.release(order.seconds)
            elif order.action == "resume":
                gpus.resume()
            return GpuAnswer(gpus.released)

    @app.get("/-/healthy", response_class=PlainTextResponse, responses=FAILED)
    async def healthy() -> Response:
        """Return what the web listener says, to a check without a certificate or a login."""
        return health_answer("healthy", why_not_healthy())

    return app
