"""The cost model of the machine that a study was measured on, for the roofs of its charts."""

from pyc_mlir.measure.environment import current_hashes
from pyc_mlir.pipelines.target.calibration import Calibration
from pyc_mlir.pipelines.target.cost_model import CostModel
from pyc_mlir.pipelines.target.target import TARGETS, Target
from pyc_mlir.runtime.device import host_cpu
from pyc_mlir.tools.tune.study_facts import StudyFacts


def machine_model(facts: StudyFacts, calibration: str | None) -> CostModel | None:
    """Return the machine's model; None for another machine's study without a calibration.

    Raises PycError: FILE_ACCESS, BAD_ARGUMENT for a file that is no calibration.
    """
    name = str(facts.study.budget.get("target", "cpu"))
    threads = 1 if facts.place is None else int(facts.place.context_facts.get("threads", 1))
    target, cpu = Target.named(name if name in TARGETS else "cpu"), host_cpu()
    if calibration is not None:
        figures = Calibration.load(calibration)
        return CostModel(target, figures, threads)
    if cpu is None or facts.place is None or facts.place.hardware != current_hashes()[0]:
        return None
    return CostModel(target.on(cpu), None, threads)
