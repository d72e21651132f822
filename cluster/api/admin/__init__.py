"""The operator's API: tiers, tenants, keys, limits, usage, the audit log and how the cluster stands."""

from fastapi import APIRouter

from cluster.api.admin import audit, keys, limits, status, tenants, tiers, usage

router = APIRouter()
for resource in (tiers, tenants, keys, limits, usage, audit, status):
    router.include_router(resource.router)
