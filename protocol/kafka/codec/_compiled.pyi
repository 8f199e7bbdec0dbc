from protocol.kafka.codec.pure import MessageReader as MessageReader
from protocol.kafka.codec.pure import MessageWriter as MessageWriter
from protocol.kafka.codec.pure import ReplyEncoder as ReplyEncoder
from protocol.kafka.codec.pure import RequestDecoder as RequestDecoder
