from warmlog.protocol.kafka.codec.pure import MessageReader as MessageReader
from warmlog.protocol.kafka.codec.pure import MessageWriter as MessageWriter
from warmlog.protocol.kafka.codec.pure import ReplyEncoder as ReplyEncoder
from warmlog.protocol.kafka.codec.pure import RequestDecoder as RequestDecoder
