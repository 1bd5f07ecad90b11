"""Which of several installations in a namespace an object belongs to.

::

    label optimus.dev/installation    the owner's or operator's word: this installation and no other
    status.installation               the claim of the installation that took the object
    neither                           the first that writes its claim has it

A claim is in the status, which the service alone may write: no `kubectl apply` or `kubectl replace` of an owner loses
it. It is written on condition that the object is still as it was seen (its resource version), so of several
installations that try at once the API server lets one succeed. A label that names another installation moves the
object: that is how the objects of an installation that is gone are handed over.
"""

from __future__ import annotations

import structlog

from optimus_service.clusters.kubernetes.gateway import ApiRefused, Gateway
from optimus_service.clusters.kubernetes.names import installation
from optimus_service.crd.translate import TrainingJob, training_job
from optimus_service.settings.kubernetes import KubernetesSettings

_log = structlog.get_logger(__name__)


def belongs_to(found: TrainingJob) -> str | None:
    """The installation that is to have the object; None: whichever claims it first."""
    return found.installation or found.claimed_by


class Claims:
    """Claims objects for one installation."""

    def __init__(self, gateway: Gateway, settings: KubernetesSettings, path: str) -> None:
        """`path`: of the objects in the API."""
        self._gateway = gateway
        self._path = path
        self.identity = installation(settings.namespace, settings.instance)

    def of(self, found: TrainingJob) -> TrainingJob | None:
        """The object as claimed by this installation, now or before; None when it is another one's.

        Raises:
            ClusterUnavailable: the API server does not answer.
        """
        if belongs_to(found) not in (None, self.identity):
            return None
        return found if found.claimed_by == self.identity else self._claim(found)

    def _claim(self, found: TrainingJob) -> TrainingJob | None:
        body = {
            "metadata": {"uid": found.uid, "resourceVersion": found.resource_version},
            "status": {"installation": self.identity},
        }
        try:
            claimed = training_job(self._gateway.patch(f"{self._path}/{found.name}/status", body))
        except ApiRefused as error:
            if not (error.is_conflict or error.is_missing):
                _log.warning("an object could not be claimed", object=found.name, error=str(error))
            return None  # it has changed since, or is gone: the next pass sees how
        if claimed is not None and claimed.claimed_by != self.identity:
            _log.error(
                "the definition of TrainingJob is older than this service: bring it up to date", object=found.name
            )
            return None
        return claimed
