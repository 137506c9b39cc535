"""Whether an answer is what its JSON schema says, by a judge that had no part in making it: the `jsonschema` library."""

from __future__ import annotations

import json
import re
from importlib.util import find_spec

from specllm.errors import ConfigError


def require_validator() -> None:
    """Raises ConfigError where the library is missing."""
    if find_spec("jsonschema") is None:
        raise ConfigError(
            "prompts with a schema need the jsonschema library, which checks every answer",
            'install it with: pip install "specllm-cli[report]"',
        )


def problem(text: str, schema: str) -> str | None:
    """Why `text` is no JSON document of the schema; None where it is. References to other servers are not followed."""
    from jsonschema.exceptions import SchemaError, ValidationError
    from jsonschema.validators import validator_for
    from jsonschema_specifications import REGISTRY
    from referencing.exceptions import Unresolvable

    rules = json.loads(schema)
    kind = validator_for(rules)
    try:
        kind.check_schema(rules)
        kind(rules, registry=REGISTRY).validate(json.loads(text))
    except ValidationError as error:
        return f"{error.json_path}: {error.message}"[:200]
    except SchemaError as error:
        return f"its schema is none: {error.message}"[:200]
    except (Unresolvable, re.error) as error:
        return f"its schema cannot be checked: {error}"[:200]
    except (ValueError, RecursionError) as error:
        return f"no JSON: {error}"[:200]
    return None
