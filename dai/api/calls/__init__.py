"""Operations as they were declared before FastAPI; each moves to a router of ``dai.api.routes``."""
