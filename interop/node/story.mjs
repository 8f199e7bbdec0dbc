// The story of interop/go/story with kafkajs: `node story.mjs BOOTSTRAP NAME` prints what was seen as one JSON object, or
// says what failed and ends with status 1. The codecs that kafkajs leaves to its user are given to it here.
import { readFileSync } from 'node:fs'
import kafkajs from 'kafkajs'
import snappy from 'kafkajs-snappy'
import lz4 from 'lz4js'
import xxh32 from 'lz4js/xxh32.js'
import * as zstd from '@bokuweb/zstd-wasm'

const { Kafka, CompressionTypes, CompressionCodecs, ConfigResourceTypes, logLevel } = kafkajs
const CODECS = ['None', 'GZIP', 'Snappy', 'LZ4', 'ZSTD']
const COUNT = 20
const EPOCH_MS = 1_700_000_000_000
const LIMIT_MS = 60_000

function codec(compress, decompress) {
  return () => ({
    compress: async (encoder) => Buffer.from(compress(encoder.buffer)),
    decompress: async (buffer) => Buffer.from(decompress(buffer)),
  })
}

// Kafka takes frames of independent blocks only. One block, as here, is independent, but lz4js does not say so: set the
// bit, and the header's checksum anew.
function lz4Compress(buffer) {
  const frame = lz4.compress(buffer)
  frame[4] |= 0x20
  frame[6] = (xxh32.hash(0, frame, 4, 2) >> 8) & 0xff
  return frame
}

function rows(partition) {
  return Array.from({ length: COUNT }, (_, i) => ({
    partition,
    key: `key-${i}`,
    value: i % 5 === 4 ? null : `value ${i} `.repeat(20),
    headers: { codec: CODECS[partition] },
    timestamp: String(EPOCH_MS + i * 1000),
  }))
}

function same(message, row) {
  return (
    message.key.toString() === row.key &&
    (message.value === null ? null : message.value.toString()) === row.value &&
    message.headers.codec.toString() === row.headers.codec &&
    message.timestamp === row.timestamp
  )
}

async function consume(kafka, name) {
  const consumer = kafka.consumer({ groupId: name, maxWaitTimeInMs: 100 })
  const next = new Map()
  let missing = COUNT * CODECS.length
  await consumer.connect()
  await consumer.subscribe({ topic: name, fromBeginning: true })
  await new Promise((resolve, reject) => {
    consumer.on(consumer.events.CRASH, ({ payload }) => reject(payload.error))
    consumer
      .run({
        eachMessage: async ({ partition, message }) => {
          const i = next.get(partition) ?? 0
          if (message.offset !== String(i) || !same(message, rows(partition)[i])) {
            reject(new Error(`partition ${partition} has at ${message.offset} ${JSON.stringify(message)}`))
          }
          next.set(partition, i + 1)
          missing -= 1
          if (missing === 0) resolve()
        },
      })
      .catch(reject)
  })
  await consumer.stop() // commits what was handled
  await consumer.disconnect()
  return missing
}

async function setting(admin, topic) {
  const asked = [{ type: ConfigResourceTypes.TOPIC, name: topic, configNames: ['max.message.bytes'] }]
  const { resources } = await admin.describeConfigs({ resources: asked, includeSynonyms: false })
  return resources[0].configEntries[0].configValue
}

const inOrder = (list, field) => list.sort((a, b) => a.partition - b.partition).map((each) => Number(each[field]))

async function groups(admin, name, report) {
  const described = await admin.describeGroups([name])
  report.state = described.groups[0].state
  report.listed = (await admin.listGroups()).groups.some(({ groupId }) => groupId === name)
  const [committed] = await admin.fetchOffsets({ groupId: name, topics: [name] })
  report.committed = inOrder(committed.partitions, 'offset')
  await admin.setOffsets({ groupId: name, topic: name, partitions: [{ partition: 0, offset: '3' }] })
  const [moved] = await admin.fetchOffsets({ groupId: name, topics: [name] })
  report.moved = inOrder(moved.partitions, 'offset')[0]
  await admin.deleteGroups([name])
}

async function topics(admin, name, report) {
  report.setting = await setting(admin, name)
  const configEntries = [{ name: 'max.message.bytes', value: '23456' }]
  const resources = [{ type: ConfigResourceTypes.TOPIC, name, configEntries }]
  await admin.alterConfigs({ validateOnly: false, resources })
  do report.altered = await setting(admin, name)
  while (report.altered !== '23456') // real Kafka tells of a change before it knows it everywhere
  await admin.deleteTopicRecords({ topic: name, partitions: [{ partition: 1, offset: '5' }] })
  report.low = inOrder(await admin.fetchTopicOffsets(name), 'low')[1]
  await admin.createPartitions({ topicPartitions: [{ topic: name, count: CODECS.length + 2 }] })
  report.controller = (await admin.describeCluster()).controller
  await admin.deleteTopics({ topics: [name] })
}

async function main(bootstrap, name) {
  const { STORY_USER: username, STORY_PASSWORD: password, STORY_CA: ca } = process.env
  const login = username
    ? { ssl: { ca: readFileSync(ca) }, sasl: { mechanism: 'scram-sha-512', username, password } }
    : {}
  const kafka = new Kafka({ brokers: [bootstrap], clientId: 'kafkajs', logLevel: logLevel.NOTHING, ...login })
  const admin = kafka.admin()
  const report = {}
  await admin.connect()
  await admin.createTopics({
    waitForLeaders: true,
    topics: [{ topic: name, numPartitions: CODECS.length, configEntries: [{ name: 'max.message.bytes', value: '12345' }] }],
  })
  const producer = kafka.producer({ idempotent: true, createPartitioner: () => ({ message }) => message.partition })
  await producer.connect()
  for (const [partition, compression] of CODECS.entries()) {
    await producer.send({ topic: name, messages: rows(partition), compression: CompressionTypes[compression] })
  }
  await producer.disconnect()
  const offsets = await admin.fetchTopicOffsets(name)
  report.ends = inOrder(offsets, 'high')
  report.starts = inOrder(offsets, 'low')
  report.at_time = inOrder(await admin.fetchTopicOffsetsByTimestamp(name, EPOCH_MS + 2500), 'offset')
  report.missing = await consume(kafka, name)
  await groups(admin, name, report)
  await topics(admin, name, report)
  await admin.disconnect()
  console.log(JSON.stringify(report))
}

CompressionCodecs[CompressionTypes.Snappy] = snappy
CompressionCodecs[CompressionTypes.LZ4] = codec(lz4Compress, lz4.decompress)
CompressionCodecs[CompressionTypes.ZSTD] = codec(zstd.compress, zstd.decompress)
await zstd.init()
setTimeout(() => {
  console.error(`not done after ${LIMIT_MS} ms`)
  process.exit(1)
}, LIMIT_MS).unref()
await main(...process.argv.slice(2))
