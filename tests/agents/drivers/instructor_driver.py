"""instructor: objects by a forced tool, as it asks for them by default."""

from pydantic import BaseModel
from sdk import main, recipe

client = recipe()["client"]


class City(BaseModel):
    city: str


def create(prompt, kind, **more):
    return client.create(model="any", messages=[{"role": "user", "content": prompt}], response_model=kind, **more)


def ask(prompt):
    return create(prompt, None).choices[0].message.content


def stream(prompt):
    with create(prompt, None, stream=True) as chunks:
        for chunk in chunks:
            yield chunk.choices[0].delta.content or "" if chunk.choices else ""


def schema(prompt):
    return create(prompt, City).model_dump_json()


main(ask, stream, schema=schema)
