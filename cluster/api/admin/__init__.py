"""The operator's API: tiers, tenants, keys, limits, usage and the audit log."""

from fastapi import APIRouter

from cluster.api.admin import audit, keys, limits, tenants, tiers, usage

router = APIRouter()
for resource in (tiers, tenants, keys, limits, usage, audit):
    router.include_router(resource.router)
