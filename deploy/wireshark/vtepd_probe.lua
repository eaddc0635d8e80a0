-- Dissects the probes, answers and reports of arrivals of vtepd: EtherType 0x88b5 in VXLAN with
-- VNI 16777215. The format is that of version 4, in crates/pathmap/src/message.rs,
-- message/connection.rs and message/arrivals.rs.
--
-- Use: wireshark -X lua_script:vtepd_probe.lua, or copy the file into the folder of personal Lua
-- plugins (Help > About Wireshark > Folders).

local MAGIC, VERSION, TAG = 0x5650, 4, 16
local PROBE, ANSWER, ARRIVALS = 1, 2, 3
local KINDS = { [PROBE] = "probe", [ANSWER] = "answer", [ARRIVALS] = "report of arrivals" }

local probe = Proto("vtepd", "vtepd probes, answers and reports")

local function field(kind, name, text, ...)
  return ProtoField[kind]("vtepd." .. name, text, ...)
end

local f = {
  magic = field("uint16", "magic", "Magic", base.HEX),
  version = field("uint8", "version", "Version"),
  kind = field("uint8", "kind", "Kind", base.DEC, KINDS),
  epoch = field("uint32", "epoch", "Epoch of the prober"),
  id = field("uint32", "id", "Number in the epoch"),
  nonce = field("uint32", "nonce", "Nonce", base.HEX),
  uplink = field("uint32", "uplink", "Uplink of the prober (interface index)"),
  port = field("uint16", "port", "Outer source port"),
  ttl = field("uint8", "ttl", "Outer TTL when sent"),
  flags = field("uint8", "flags", "Flags", base.HEX),
  records = field("bool", "flags.records", "Routers record addresses", 8, nil, 1),
  urgent = field("bool", "flags.urgent", "Urgent: earlier probes had no answer", 8, nil, 2),
  token = field("uint32", "token", "Token of the last answer", base.HEX),
  arrival = field("uint32", "arrival", "Uplink of arrival (interface index)"),
  next_token = field("uint32", "next_token", "Token for the next probes", base.HEX),
  ttl_seen = field("uint8", "ttl_seen", "TTL on arrival"),
  routers = field("uint8", "routers", "Routers on the path"),
  gain = field("uint32", "gain", "Announced gain"),
  recorded = field("ipv4", "recorded", "Recorded address"),
  load = field("none", "load", "Load of a link"),
  load_link = field("ipv4", "load.link", "Link"),
  load_rate = field("uint32", "load.rate", "Load, 1000 bytes/s"),
  flow = field("none", "qp", "Queue pair and its path"),
  flow_vni = field("uint24", "qp.vni", "VNI"),
  flow_number = field("uint24", "qp.number", "Destination queue pair", base.HEX),
  flow_port = field("uint16", "qp.port", "Inner source port"),
  flow_rate = field("uint32", "qp.rate", "Rate, 1000 bytes/s"),
  flow_uplink = field("uint32", "qp.uplink", "Uplink (interface index)"),
  flow_arrival = field("uint32", "qp.arrival", "Uplink of arrival (interface index)"),
  flow_routers = field("uint8", "qp.routers", "Routers on the path"),
  flow_known = field("bool", "qp.known", "Path is known"),
  flow_source4 = field("ipv4", "qp.source", "Source"),
  flow_destination4 = field("ipv4", "qp.destination", "Destination"),
  flow_source6 = field("ipv6", "qp.source6", "Source"),
  flow_destination6 = field("ipv6", "qp.destination6", "Destination"),
  flow_recorded = field("ipv4", "qp.recorded", "Recorded address"),
  cm = field("none", "cm", "Handshake of the communication manager"),
  cm_vni = field("uint24", "cm.vni", "VNI"),
  cm_number = field("uint24", "cm.qp", "Queue pair", base.HEX),
  cm_id = field("uint32", "cm.id", "Own number of the exchange", base.HEX),
  cm_of = field("uint32", "cm.of", "Number of the request", base.HEX),
  cm_source4 = field("ipv4", "cm.source", "Source"),
  cm_destination4 = field("ipv4", "cm.destination", "Destination"),
  cm_source6 = field("ipv6", "cm.source6", "Source"),
  cm_destination6 = field("ipv6", "cm.destination6", "Destination"),
  sprayed_vnis = field("uint8", "spray.vnis", "VNIs of which sprayed packets are taken"),
  sprayed_paths = field("uint8", "spray.paths", "Paths with arrivals"),
  sprayed_vni = field("uint32", "spray.vni", "VNI"),
  path = field("none", "spray.path", "Arrivals by a path"),
  path_port = field("uint16", "spray.port", "Outer source port"),
  path_received = field("uint16", "spray.received", "Packets, modulo 65536"),
  path_marked = field("uint16", "spray.marked", "ECN marks, modulo 65536"),
  tag = field("bytes", "tag", "Tag (keyed BLAKE2s; not verified)"),
}
for _, each in pairs(f) do
  table.insert(probe.fields, each)
end

local bad = {
  version = ProtoExpert.new("vtepd.bad_version", "Unknown version of the format",
    expert.group.UNDECODED, expert.severity.WARN),
  length = ProtoExpert.new("vtepd.bad_length", "The message ends too early or goes on",
    expert.group.MALFORMED, expert.severity.ERROR),
}
probe.experts = { bad.version, bad.length }

-- Takes fields from the start of a buffer. Running out of bytes raises BEYOND.
local BEYOND = "vtepd: beyond the end"
local Reader = {}
Reader.__index = Reader

function Reader.new(buffer, offset, stop)
  return setmetatable({ buffer = buffer, at = offset, stop = stop }, Reader)
end

function Reader:take(length)
  if self.at + length > self.stop then
    error(BEYOND, 0)
  end
  local range = self.buffer(self.at, length)
  self.at = self.at + length
  return range
end

function Reader:add(tree, which, length)
  local range = self:take(length)
  tree:add(which, range)
  return length <= 4 and range:uint() or nil
end

-- Adds source and destination of one family.
function Reader:hosts(tree, is_ipv6, four, six)
  local length = is_ipv6 and 16 or 4
  for _, which in ipairs(is_ipv6 and six or four) do
    self:add(tree, which, length)
  end
end

local function dissect_flow(reader, tree)
  local start = reader.at
  local branch = tree:add(f.flow, reader.buffer(start, reader.stop - start))
  local flags = reader:take(1):uint()
  branch:add(f.flow_known, bit.band(flags, 2) ~= 0)
  reader:add(branch, f.flow_vni, 3)
  local addresses = reader:take(1):uint()
  local number = reader:add(branch, f.flow_number, 3)
  reader:add(branch, f.flow_port, 2)
  reader:add(branch, f.flow_routers, 1)
  reader:take(1)
  reader:add(branch, f.flow_rate, 4)
  reader:add(branch, f.flow_uplink, 4)
  reader:add(branch, f.flow_arrival, 4)
  reader:hosts(branch, bit.band(flags, 1) ~= 0, { f.flow_source4, f.flow_destination4 },
    { f.flow_source6, f.flow_destination6 })
  for _ = 1, addresses do
    reader:add(branch, f.flow_recorded, 4)
  end
  branch:set_len(reader.at - start)
  branch:append_text(string.format(": 0x%06x", number))
end

local function dissect_handshake(reader, tree)
  local start = reader.at
  local branch = tree:add(f.cm, reader.buffer(start, reader.stop - start))
  local flags = reader:take(1):uint()
  reader:add(branch, f.cm_vni, 3)
  reader:take(1)
  reader:add(branch, f.cm_number, 3)
  reader:add(branch, f.cm_id, 4)
  reader:add(branch, f.cm_of, 4)
  reader:hosts(branch, bit.band(flags, 1) ~= 0, { f.cm_source4, f.cm_destination4 },
    { f.cm_source6, f.cm_destination6 })
  branch:set_len(reader.at - start)
end

local function dissect_answer(reader, tree)
  local arrival = reader:add(tree, f.arrival, 4)
  reader:add(tree, f.next_token, 4)
  reader:add(tree, f.ttl_seen, 1)
  local addresses = reader:add(tree, f.routers, 1)
  local loads = reader:take(2):uint()
  reader:add(tree, f.gain, 4)
  local flows, handshakes = reader:take(1):uint(), reader:take(1):uint()
  reader:take(2)
  for _ = 1, addresses do
    reader:add(tree, f.recorded, 4)
  end
  for _ = 1, loads do
    local branch = tree:add(f.load, reader.buffer(reader.at, 0))
    branch:set_len(8)
    reader:add(branch, f.load_link, 4)
    reader:add(branch, f.load_rate, 4)
  end
  for _ = 1, flows do
    dissect_flow(reader, tree)
  end
  for _ = 1, handshakes do
    dissect_handshake(reader, tree)
  end
  return arrival
end

local function dissect_arrivals(reader, tree)
  local vnis, paths = reader:add(tree, f.sprayed_vnis, 1), reader:add(tree, f.sprayed_paths, 1)
  reader:take(2)
  for _ = 1, vnis do
    reader:add(tree, f.sprayed_vni, 4)
  end
  for _ = 1, paths do
    local branch = tree:add(f.path, reader.buffer(reader.at, 0))
    branch:set_len(6)
    local port = reader:add(branch, f.path_port, 2)
    local received = reader:add(branch, f.path_received, 2)
    local marked = reader:add(branch, f.path_marked, 2)
    branch:append_text(string.format(": source port %d, %d packets, %d marks", port, received,
      marked))
  end
  return vnis, paths
end

local function dissect_message(reader, tree, info)
  reader:add(tree, f.magic, 2)
  local version = reader:add(tree, f.version, 1)
  if version ~= VERSION then
    tree:add_proto_expert_info(bad.version)
    reader.at = reader.stop
    return
  end
  local kind = reader:add(tree, f.kind, 1)
  reader:add(tree, f.epoch, 4)
  local id = reader:add(tree, f.id, 4)
  reader:add(tree, f.nonce, 4)
  local uplink = reader:add(tree, f.uplink, 4)
  local port = reader:add(tree, f.port, 2)
  reader:add(tree, f.ttl, 1)
  local flags = reader:take(1)
  for _, which in ipairs({ f.flags, f.records, f.urgent }) do
    tree:add(which, flags)
  end
  reader:add(tree, f.token, 4)
  local text = string.format("%s %d: uplink %d, source port %d", KINDS[kind] or "?", id, uplink,
    port)
  if kind == ANSWER then
    text = string.format("%s, arrived at uplink %d", text, dissect_answer(reader, tree))
  elseif kind == ARRIVALS then
    text = string.format("%s, %d VNIs, %d paths", text, dissect_arrivals(reader, tree))
  end
  info.cols.info = text
  tree:append_text(", " .. text)
end

function probe.dissector(buffer, info, root)
  if buffer:len() < 4 + TAG or buffer(0, 2):uint() ~= MAGIC then
    return 0
  end
  info.cols.protocol = "vtepd"
  local tree = root:add(probe, buffer())
  local reader = Reader.new(buffer, 0, buffer:len() - TAG)
  local passed, problem = pcall(dissect_message, reader, tree, info)
  if not passed and problem ~= BEYOND then
    error(problem, 0)
  end
  if not passed or reader.at ~= reader.stop then
    tree:add_proto_expert_info(bad.length)
  end
  tree:add(f.tag, buffer(buffer:len() - TAG, TAG))
  return buffer:len()
end

DissectorTable.get("ethertype"):add(0x88b5, probe)
