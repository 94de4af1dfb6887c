/* SPDX-License-Identifier: Apache-2.0
 *
 * Codecs of the messages that every connection has: hello, errors, heartbeat, joining a run. Pure.
 */
#include "codec_private.h"

static void hello_encode(struct enc *enc, const struct msg *msg)
{
    const struct msg_hello *hello = &msg->u.hello;
    Cairn__Hello pb = CAIRN__HELLO__INIT;
    pb.version_min = hello->version_min;
    pb.version_max = hello->version_max;
    pb.features = hello->features;
    pb.agent = enc_text(enc, hello->agent);
    enc_pack(enc, &pb.base);
}

static void hello_decode(struct dec *dec, const void *message, struct msg *ret)
{
    const Cairn__Hello *pb = message;
    dec_range(dec, "version_min", pb->version_min, 1, UINT32_MAX);
    dec_range(dec, "version_max", pb->version_max, pb->version_min, UINT32_MAX);
    ret->u.hello = (struct msg_hello){.version_min = pb->version_min,
                                      .version_max = pb->version_max,
                                      .features = pb->features,
                                      .agent = dec_text(dec, "agent", pb->agent)};
}

static void welcome_encode(struct enc *enc, const struct msg *msg)
{
    const struct msg_welcome *welcome = &msg->u.welcome;
    Cairn__Welcome pb = CAIRN__WELCOME__INIT;
    pb.version = welcome->version;
    pb.features = welcome->features;
    pb.store_uuid = enc_bytes(sizeof(welcome->store_uuid), &welcome->store_uuid);
    pb.heartbeat_ms = welcome->heartbeat_ms;
    pb.dead_after_ms = welcome->dead_after_ms;
    pb.payload_max = welcome->payload_max;
    pb.message_max = welcome->message_max;
    pb.agent = enc_text(enc, welcome->agent);
    enc_pack(enc, &pb.base);
}

static void welcome_decode(struct dec *dec, const void *message, struct msg *ret)
{
    const Cairn__Welcome *pb = message;
    struct msg_welcome welcome = {.version = pb->version,
                                  .features = pb->features,
                                  .heartbeat_ms = pb->heartbeat_ms,
                                  .dead_after_ms = pb->dead_after_ms,
                                  .payload_max = pb->payload_max,
                                  .message_max = pb->message_max,
                                  .agent = dec_text(dec, "agent", pb->agent)};
    dec_range(dec, "version", pb->version, 1, UINT32_MAX);
    dec_fixed(dec, "store_uuid", pb->store_uuid, sizeof(welcome.store_uuid), &welcome.store_uuid);
    dec_range(dec, "dead_after_ms", pb->dead_after_ms, pb->heartbeat_ms, UINT32_MAX);
    dec_range(dec, "payload_max", pb->payload_max, 1, UINT32_MAX);
    dec_range(dec, "message_max", pb->message_max, 1, UINT32_MAX);
    ret->u.welcome = welcome;
}

static void error_encode(struct enc *enc, const struct msg *msg)
{
    Cairn__Error pb = CAIRN__ERROR__INIT;
    pb.code = msg->u.error.code;
    pb.text = enc_text(enc, msg->u.error.text);
    enc_pack(enc, &pb.base);
}

static void error_decode(struct dec *dec, const void *message, struct msg *ret)
{
    const Cairn__Error *pb = message;
    ret->u.error = (struct msg_error){.code = dec_code(dec, pb->code, DEC_REQUIRED),
                                      .text = dec_text(dec, "text", pb->text)};
}

static void ping_encode(struct enc *enc, const struct msg *msg)
{
    (void)msg;
    Cairn__Ping pb = CAIRN__PING__INIT;
    enc_pack(enc, &pb.base);
}

static void pong_encode(struct enc *enc, const struct msg *msg)
{
    (void)msg;
    Cairn__Pong pb = CAIRN__PONG__INIT;
    enc_pack(enc, &pb.base);
}

static void bye_encode(struct enc *enc, const struct msg *msg)
{
    (void)msg;
    Cairn__Bye pb = CAIRN__BYE__INIT;
    enc_pack(enc, &pb.base);
}

static void empty_decode(struct dec *dec, const void *message, struct msg *ret)
{
    (void)dec;
    (void)message;
    (void)ret;
}

static void join_encode(struct enc *enc, const struct msg *msg)
{
    const struct msg_join *join = &msg->u.join;
    Cairn__Join pb = CAIRN__JOIN__INIT;
    Cairn__RunName run;
    pb.run = enc_run(&join->run, &run);
    pb.viewer = join->viewer;
    pb.label = enc_text(enc, join->label);
    if (!join->viewer) {
        pb.token = enc_bytes(sizeof(join->token), &join->token);
        pb.rank = join->rank;
        pb.world_size = join->world_size;
        pb.writer = join->writer;
    }
    enc_pack(enc, &pb.base);
}

static void join_decode(struct dec *dec, const void *message, struct msg *ret)
{
    const Cairn__Join *pb = message;
    struct msg_join join = {.viewer = pb->viewer,
                            .rank = pb->rank,
                            .world_size = pb->world_size,
                            .writer = pb->writer,
                            .label = dec_text(dec, "label", pb->label)};
    join.run = dec_run(dec, "run", pb->run);
    if (pb->viewer) {
        dec_range(dec, "token (of a viewer)", pb->token.len, 0, 0);
        dec_range(dec, "rank (of a viewer)", pb->rank, 0, 0);
        dec_range(dec, "world_size (of a viewer)", pb->world_size, 0, 0);
        dec_range(dec, "writer (of a viewer)", pb->writer, 0, 0);
    } else {
        dec_fixed(dec, "token", pb->token, sizeof(join.token), &join.token);
        dec_range(dec, "world_size", pb->world_size, 1, LIMIT_WORLD_SIZE);
        dec_range(dec, "rank", pb->rank, 0, dec->status == 0 ? pb->world_size - 1 : UINT32_MAX);
    }
    ret->u.join = join;
}

static void joined_encode(struct enc *enc, const struct msg *msg)
{
    const struct msg_joined *joined = &msg->u.joined;
    Cairn__Joined pb = CAIRN__JOINED__INIT;
    Cairn__CkptId latest;
    pb.exists = joined->exists;
    pb.run_uuid = enc_bytes(sizeof(joined->run_uuid), &joined->run_uuid);
    pb.chunk_bytes = joined->chunk_bytes;
    pb.newest_term = joined->newest_term;
    pb.latest = enc_ckpt(joined->latest, &latest);
    pb.object_bytes = joined->object_bytes;
    enc_pack(enc, &pb.base);
}

static void joined_decode(struct dec *dec, const void *message, struct msg *ret)
{
    const Cairn__Joined *pb = message;
    struct msg_joined joined = {.exists = pb->exists,
                                .chunk_bytes = pb->chunk_bytes,
                                .newest_term = pb->newest_term,
                                .latest = dec_ckpt(dec, "latest", pb->latest, DEC_OPTIONAL),
                                .object_bytes = pb->object_bytes};
    dec_fixed(dec, "run_uuid", pb->run_uuid, sizeof(joined.run_uuid), &joined.run_uuid);
    /* The server may not know the chunk size of a run that does not exist yet, and then sends 0. */
    if (pb->exists || pb->chunk_bytes != 0) {
        dec_range(dec, "chunk_bytes", pb->chunk_bytes, LIMIT_CHUNK_BYTES_MIN, LIMIT_CHUNK_BYTES);
    }
    dec_range(dec, "object_bytes", pb->object_bytes, 0, LIMIT_OBJECT_BYTES);
    ret->u.joined = joined;
}

static const struct msg_codec CODECS[] = {
    {MSG_HELLO, "HELLO", false, &cairn__hello__descriptor, hello_encode, hello_decode},
    {MSG_WELCOME, "WELCOME", false, &cairn__welcome__descriptor, welcome_encode, welcome_decode},
    {MSG_ERROR, "ERROR", false, &cairn__error__descriptor, error_encode, error_decode},
    {MSG_PING, "PING", false, &cairn__ping__descriptor, ping_encode, empty_decode},
    {MSG_PONG, "PONG", false, &cairn__pong__descriptor, pong_encode, empty_decode},
    {MSG_BYE, "BYE", false, &cairn__bye__descriptor, bye_encode, empty_decode},
    {MSG_JOIN, "JOIN", false, &cairn__join__descriptor, join_encode, join_decode},
    {MSG_JOINED, "JOINED", false, &cairn__joined__descriptor, joined_encode, joined_decode},
};
const struct msg_family msg_family_session = {CODECS, ARRAY_LEN(CODECS)};
