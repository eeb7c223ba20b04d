"""Chat templates: the project's own, short, each in the manner of a known family.

Between them they use what families use. ``demo`` is the demo model's.
"""

TEMPLATES = {
    "demo": (
        "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nYou are a "
        "helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] "
        "+ '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}"
        "{{ '<|im_start|>assistant\n' }}{% endif %}"
    ),
    # bos_token, strftime_now, message[1:], trim, tojson(indent), `is defined`, iterable test, is mapping
    "llama": """\
{{- bos_token }}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "1 Jan 2024" %}
    {%- endif %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\nToday: " + date_string + "\\n\\n" }}
{%- if tools is not none %}
    {{- "Functions, to be called as {\\"name\\": ..., \\"parameters\\": ...}:\\n\\n" }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- system_message + "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("one tool call at a time") }}
        {%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n{"name": "' + call.name + '", "parameters": ' }}
        {{- call.arguments | tojson }}
        {{- "}<|eot_id|>" }}
    {%- else %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable and message.content is not string %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
""",
    # namespace, reversed loop, loop.previtem/nextitem, split, strip, startswith, multi-step indexes, default(), break
    "qwen": """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- "<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(last=messages|length - 1, found=false) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if message.role == "user" and not message.content.startswith('<tool_response>') %}
        {%- set ns.last = index %}
        {%- break %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == "user" or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set content = message.content %}
        {%- set thought = '' %}
        {%- if message.reasoning_content is defined and message.reasoning_content is not none %}
            {%- set thought = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set thought = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>' + message.role + '\\n' }}
        {%- if loop.index0 > ns.last and thought %}{{- '<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' }}{%- endif %}
        {{- content }}
        {%- for tool_call in message.tool_calls | default([], true) %}
            {%- if tool_call.function is defined %}{%- set tool_call = tool_call.function %}{%- endif %}
            {{- '\\n<tool_call>\\n{"name": "' ~ tool_call.name ~ '", "arguments": ' }}
            {{- tool_call.arguments | tojson ~ '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or loop.previtem.role != "tool" %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or loop.nextitem.role != "tool" %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}
""",
    # raise_exception on order, list filter with selectattr and rejectattr, continue, eos_token, namespaces, dict items
    "mistral": """\
{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace(index=0) %}
{%- for message in loop_messages %}
    {%- if message.role == "tool" or message.tool_calls is defined %}{%- continue %}{%- endif %}
    {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
        {{- raise_exception("roles must alternate user and assistant, after an optional system message") }}
    {%- endif %}
    {%- set ns.index = ns.index + 1 %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS] [" }}
            {%- for tool in tools %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.function.items() if key != "return" %}
                    {%- if val is string %}
                        {{- '"' + key + '": "' + val + '"' }}
                    {%- else %}
                        {{- '"' + key + '": ' + val|tojson }}
                    {%- endif %}
                    {%- if not loop.last %}{{- ", " }}{%- endif %}
                {%- endfor %}
                {{- "}}" }}
                {%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" }}{%- endif %}
            {%- endfor %}
            {{- "[/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {{- "[TOOL_CALLS] [" }}
        {%- for tool_call in message.tool_calls %}
            {%- set f = tool_call.function %}
            {{- '{"name": "' + f.name + '", "arguments": ' + f.arguments|tojson + ', "id": "' + tool_call.id + '"}' }}
            {{- ']' if loop.last else ', ' }}
        {%- endfor %}
        {{- eos_token }}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token }}
    {%- else %}
        {%- set text = message.content|string %}
        {{- '[TOOL_RESULTS] {"content": ' + (text if text[:1] in '{["0123456789' else text|tojson) }}
        {{- ', "call_id": "' + message.tool_call_id + '"}[/TOOL_RESULTS]' }}
    {%- endif %}
{%- endfor %}
""",
    # macros that call themselves, dict.keys, join, upper, replace, trim and lstrip of plain blocks, ternaries, {% set %} blocks
    "hermes": """\
{% macro type_of(spec) %}
{% set names = {"string": "str", "number": "float", "integer": "int", "boolean": "bool"} %}
{% if spec.type is string and spec.type in names %}
{{- names[spec.type] }}
{%- elif spec.type == "array" %}
{{- "list[" + type_of(spec["items"]) + "]" }}
{%- elif spec.type == "object" %}
{{- "dict[str, " + (type_of(spec.additionalProperties) if spec.additionalProperties else "Any") + "]" }}
{%- else %}
{{- spec.type | join(" | ") if spec.type is sequence and spec.type is not string else "Any" }}
{%- endif %}
{% endmacro %}
{{ bos_token }}
{%- for tool in tools or [] %}
{% set f = tool.function %}

def {{ f.name }}({% for name, spec in f.parameters.properties.items() %}{{ name }}: {{ type_of(spec) }}
  {%- if name not in f.parameters.required | default([]) %} = None{% endif %}{{ ", " if not loop.last }}{% endfor %}):
    {# a comment that does not show #}
    {% set doc %}{{ f.description | replace("\\n", " ") | capitalize }}{% endset %}
    \"\"\"{{ doc }}\"\"\"
{% endfor %}
{% for m in messages %}
  {%- generation %}
<|{{ m.role | upper }}|>{{ loop.index }}/{{ loop.length }} {{ m.content }}{% if m.tool_calls %} calls {{ m.tool_calls
    | map(attribute="function.name") | join(", ") }}{% endif %}

  {%- endgeneration %}
{% endfor %}
{{ documents | map(attribute="title") | list if documents else "no documents" }}
{{ messages | map(attribute="role") | unique | sort | join("+") }}
{% if add_generation_prompt %}<|ASSISTANT|>{% endif +%}
""",
    # system text before the first turn, roles that must alternate, content as string or parts, -%} on both sides
    "gemma": """\
{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- set before = messages[0]['content'] if messages[0]['content'] is string else messages[0]['content'][0]['text'] -%}
    {%- set before = before + '\\n\\n' -%}
    {%- set turns = messages[1:] -%}
{%- else -%}
    {%- set before = "" -%}
    {%- set turns = messages -%}
{%- endif -%}
{%- for message in turns -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("turns are of user and assistant, in turn") }}
    {%- endif -%}
    {%- set role = "model" if (message['role'] == 'assistant') else message['role'] -%}
    {{ '<start_of_turn>' + role + '\\n' + (before if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'text' -%}{{ item['text'] | trim }}{%- endif -%}
        {%- endfor -%}
    {%- else -%}
        {{ raise_exception("neither text nor parts") }}
    {%- endif -%}
    {{ '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{'<start_of_turn>model\\n'}}
{%- endif -%}
""",
    # tools in a message of their own, `in message`, not in, string comparison chains, one line, eos_token at the end
    "phi": (
        "{% for message in messages %}"
        "{% if message['role'] == 'system' and 'tools' in message and message['tools'] is not none %}"
        "{{ '<|system|>' + message['content'] + '<|tool|>' + message['tools'] + '<|/tool|><|end|>' }}"
        "{% elif message['role'] not in ['tool', 'assistant'] %}{{ '<|' + message['role'] + '|>\n' + message['content'] + "
        "'<|end|>\n' }}{% elif (message['role'] == 'assistant') %}{{ '<|assistant|>\n' + message['content'] + '<|end|>\n' }}"
        "{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}"
    ),
    # /think in the system text, replace and rstrip, a macro over tools, is sequence, date by strftime_now, nested conditions
    "smollm": """\
{%- macro as_list(tools) -%}
    {%- for tool in tools %}{{ "\\n" ~ (tool.function | string) }}{%- endfor %}
{%- endmacro %}
{%- if enable_thinking is not defined %}{%- set enable_thinking = true %}{%- endif %}
{%- if messages[0].role == "system" %}
    {%- set system_message = messages[0].content %}
    {%- if "/no_think" in system_message %}
        {%- set mode = "/no_think" %}
    {%- elif "/think" in system_message %}
        {%- set mode = "/think" %}
    {%- else %}
        {%- set mode = "/think" if enable_thinking else "/no_think" %}
    {%- endif %}
    {%- set own = system_message.replace("/no_think", "").replace("/think", "").rstrip() %}
{%- else %}
    {%- set mode = "/think" if enable_thinking else "/no_think" %}
{%- endif %}
{{- "<|im_start|>system\\nToday: " ~ strftime_now("%d %B %Y") ~ "\\nMode: " ~ mode ~ "\\n\\n" }}
{%- if own is defined and own %}{{- own ~ "\\n\\n" }}{%- endif %}
{%- if tools and tools is sequence and tools is not mapping %}{{- "<tools>" ~ as_list(tools) ~ "\\n</tools>" }}{%- endif %}
{{- "<|im_end|>\\n" }}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else "" %}
    {%- if message.role == "user" %}
        {{ "<|im_start|>" + message.role + "\\n" + content + "<|im_end|>\\n" }}
    {%- elif message.role == "assistant" %}
        {%- generation %}
        {%- set thought = "" if mode == "/think" else "<think>\\n\\n</think>\\n" %}
        {{ "<|im_start|>assistant\\n" ~ thought ~ content.lstrip("\\n") ~ "<|im_end|>\\n" }}
        {%- endgeneration %}
    {%- elif message.role == "tool" %}
    {{ "<|im_start|>user\\n" + content + "<|im_end|>\\n" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{ "<|im_start|>assistant\\n" }}{% if mode == "/no_think" %}{{ "<think>\\n\\n</think>\\n" }}{% endif %}
{%- endif %}
""",
    # a system text made of what there is, documents in a loop with loop.last, tojson(indent=4), strftime_now, elif chains
    "granite": """\
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] %}
    {%- set turns = messages[1:] %}
{%- else %}
    {%- set system_message = "Knowledge ends: April 2024.\\nToday: " + strftime_now('%B %d, %Y') + ".\\nYou are an assistant" %}
    {%- if tools and documents %}
        {%- set system_message = system_message + " with tools and documents." %}
    {%- elif tools %}
        {%- set system_message = system_message + " with tools." %}
    {%- elif documents %}
        {%- set system_message = system_message + " with documents." %}
    {%- else %}
        {%- set system_message = system_message + "." %}
    {%- endif %}
    {%- set turns = messages %}
{%- endif %}
{{- '<|start_of_role|>system<|end_of_role|>' + system_message + '<|end_of_text|>\\n' }}
{%- if tools %}
    {{- '<|start_of_role|>tools<|end_of_role|>' }}
    {{- tools | tojson(indent=4) }}
    {{- '<|end_of_text|>\\n' }}
{%- endif %}
{%- if documents %}
    {%- for document in documents %}
        {{- '<|start_of_role|>document {"id": "' + (loop.index | string) + '"}<|end_of_role|>\\n' }}
        {{- document['text'] }}
        {{- '<|end_of_text|>\\n' if not loop.last else '<|end_of_text|>' }}
    {%- endfor %}
{%- endif %}
{%- for message in turns %}
    {{- '<|start_of_role|>' + message['role'] + '<|end_of_role|>' + message['content'] + '<|end_of_text|>\\n' }}
    {%- if loop.last and add_generation_prompt %}
        {{- '<|start_of_role|>assistant' }}
            {%- if controls %}{{- ' ' + controls | tojson() }}{%- endif %}
        {{- '<|end_of_role|>' }}
    {%- endif %}
{%- endfor %}
""",
    # bos_token first, eos_token only between turns, all on one line
    "olmo": (
        "{{ bos_token }}{% for message in messages %}"
        "{% if message['role'] == 'system' %}"
        "{{ '<|system|>\n' + message['content'] + '\n' }}"
        "{% elif message['role'] == 'user' %}{{ '<|user|>\n' + message['content'] + '\n' }}"
        "{% elif message['role'] == 'assistant' %}{% if not loop.last %}{{ '<|assistant|>\n' + message['content'] + eos_token + "
        "'\n' }}{% else %}{{ '<|assistant|>\n' + message['content'] + eos_token }}{% endif %}{% endif %}"
        "{% if loop.last and add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}{% endfor %}"
    ),
    # the first Mistral and Mixtral: spaces around [INST], the system text in the first turn, an error for any other role
    "mixtral": """\
{%- set system_message = messages[0]["content"] if messages[0]["role"] == "system" else "" %}
{%- set turns = messages[1:] if system_message else messages %}
{{- bos_token }}
{%- for message in turns %}
    {%- if (message["role"] == "user") != (loop.index0 % 2 == 0) %}
        {{- raise_exception("after an optional system message, user and assistant take turns") }}
    {%- endif %}
    {%- if message["role"] == "user" %}
        {%- set before = system_message ~ "\\n\\n" if loop.first and system_message else "" %}
        {{- " [INST] " + before + message["content"] + " [/INST]" }}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"] + eos_token }}
    {%- else %}
        {{- raise_exception("only user and assistant") }}
    {%- endif %}
{%- endfor %}
""",
}
