"""PayloadCodec: everything that the pump knows about one kind of payload."""

from lxml import etree
from lxml.etree import _Element as Element

from agentix.agentserver.errors import PayloadError
from agentix.agentserver.names import listener_namespace
from agentix.agentserver.payload.decode import Decode, decoder
from agentix.agentserver.payload.encode import encoder
from agentix.agentserver.payload.example import example
from agentix.agentserver.payload.kinds import Plain, RecordType, brief
from agentix.agentserver.payload.prompt import prompt
from agentix.agentserver.payload.schema import compile_schema, schema

__all__ = ["PayloadCodec"]


class PayloadCodec:
    """The schema, the decoder, the encoder, the example and the prompt of a payload.

    Args:
        root: The root tag, as `names.root_tag` derives it.
        record: The description of the payload class.

    Raises:
        RegistrationError: No schema can be made.
    """

    __slots__ = (
        "_encode",
        "_qualified",
        "_schema",
        "decode",
        "namespace",
        "record",
        "root",
        "xsd",
    )

    def __init__(self, root: str, record: RecordType) -> None:
        self.root = root
        self.record = record
        self.namespace = listener_namespace(root.rpartition(".")[0])
        """The listener's own XML namespace, whose elements are taken for unqualified ones."""
        self._qualified = f"{{{self.namespace}}}{root}"
        self.xsd = schema(root, record)
        """The schema: canonical bytes, the same for the same record."""
        self._schema = compile_schema(self.xsd)
        self.decode: Decode = decoder(record)
        """Reads the plain values of an element that `validate` accepted.

        It raises PayloadError where Python has no value for what the schema allows, such as an
        integer of 5,000 digits.
        """
        self._encode = encoder(root, record)

    def validate(self, element: Element) -> bool:
        """Tells whether the schema accepts an element, in place wherever it is in its tree.

        Where the root is in the listener's own namespace, it and what is below it are taken out
        of that namespace first, in the tree itself.
        """
        if element.tag == self._qualified:
            unqualify(element, self.namespace)
        try:
            return self._schema.validate(element)
        except etree.LxmlError:  # a tree that no parser of ours makes
            return False

    def encode(self, plain: Plain) -> Element:
        """Writes plain values as an element.

        Raises:
            PayloadError: They have no valid XML form.
        """
        element = self._encode(plain)
        if not self.validate(element):
            raise PayloadError(f"{self.root}: the schema refuses {brief(plain)}")
        return element

    def example(self) -> str:
        """Gives a valid payload, in one line."""
        return etree.tostring(self._encode(example(self.record)), encoding="unicode")

    def prompt(self, name: str, description: str) -> str:
        """Tells a language model how to call the listener.

        Args:
            name: The listener's registered name.
            description: What it does, in the words of the organism.
        """
        return prompt(name, description, self.record, self.example())


def unqualify(root: Element, namespace: str) -> None:
    """Takes elements out of a namespace."""
    prefix = f"{{{namespace}}}"
    for element in root.iter():
        element.tag = str(element.tag).removeprefix(prefix)
