from protocol.kafka.plain_produce import PlainProduce
from protocol.kafka.values import KafkaProduceRequest, TopicNames
from protocol.response import ProduceResponse

def read(frame: memoryview, names: TopicNames) -> PlainProduce | None: ...
def reply(
    version: int, correlation_id: int, request: KafkaProduceRequest, response: ProduceResponse
) -> bytes | None: ...
