"""Chat templates by name, for model files that bring none. Each follows the published turn format of its models."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_CHATML = """\
{%- for message in messages -%}
{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{ '<|im_start|>assistant\\n' }}
{%- endif -%}
"""

_GEMMA = """\
{{- bos_token -}}
{%- set turns = namespace(system='', expected='user') -%}
{%- for message in messages -%}
{%- if message.role == 'system' and loop.first -%}
{%- set turns.system = message.content + '\\n\\n' -%}
{%- else -%}
{%- if message.role != turns.expected -%}
{{ raise_exception("the roles must alternate user, assistant, user, ...; got '" + message.role + "'") }}
{%- endif -%}
{%- set turns.expected = 'assistant' if message.role == 'user' else 'user' -%}
{{ '<start_of_turn>' + ('model' if message.role == 'assistant' else message.role) + '\\n' }}
{{- turns.system + (message.content | trim) + '<end_of_turn>\\n' }}
{%- set turns.system = '' -%}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{ '<start_of_turn>model\\n' }}
{%- endif -%}
"""

_LLAMA3 = """\
{{- bos_token -}}
{%- for message in messages -%}
{{ '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' + (message.content | trim) + '<|eot_id|>' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif -%}
"""

BUILTIN_TEMPLATES: Mapping[str, str] = MappingProxyType({"chatml": _CHATML, "gemma": _GEMMA, "llama3": _LLAMA3})
