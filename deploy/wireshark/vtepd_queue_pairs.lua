-- Adds the path of its queue pair to each RoCEv2 packet, from the output of vtepctl:
--
--   vtepctl qp -o json > qp.json
--   wireshark -X lua_script:vtepd_queue_pairs.lua -o vtepd_qp.file:qp.json -r capture.pcapng
--
-- It works on both sides of the encapsulation. A packet is matched by its destination queue pair,
-- its inner addresses and, if it is encapsulated, its VNI.

local qp = Proto("vtepd_qp", "vtepd queue pair")
qp.prefs.file = Pref.string("Queue pairs", "", "Output of `vtepctl qp -o json` of the leaf")

local f = {
  number = ProtoField.uint24("vtepd_qp.number", "Destination queue pair", base.HEX),
  path = ProtoField.string("vtepd_qp.path", "Path"),
  uplink = ProtoField.string("vtepd_qp.uplink", "Uplink"),
  vtep = ProtoField.string("vtepd_qp.vtep", "VTEP"),
  source_port = ProtoField.uint16("vtepd_qp.source_port", "Outer source port of the path"),
  state = ProtoField.string("vtepd_qp.state", "State"),
  moves = ProtoField.uint32("vtepd_qp.moves", "Moves"),
  off_path = ProtoField.bool("vtepd_qp.off_path", "Has another outer source port"),
}
for _, each in pairs(f) do
  table.insert(qp.fields, each)
end

local destination_qp = Field.new("infiniband.bth.destqp")
local vnis = Field.new("vxlan.vni")
local ports = Field.new("udp.srcport")
local addresses = {
  { Field.new("ip.src"), Field.new("ip.dst") },
  { Field.new("ipv6.src"), Field.new("ipv6.dst") },
}

-- A reader of JSON (RFC 8259) without escapes beyond the character itself: vtepctl writes none.
local function json(text)
  local at = 1
  local value

  local function skip()
    at = text:find("[^%s]", at) or #text + 1
    return text:sub(at, at)
  end

  local function fail()
    error(string.format("not the output of `vtepctl qp -o json`: byte %d", at), 0)
  end

  local function items(close, item)
    at = at + 1
    if skip() == close then
      at = at + 1
      return
    end
    while true do
      item()
      local next = skip()
      at = at + 1
      if next == close then
        return
      elseif next ~= "," then
        fail()
      end
    end
  end

  local function string_value()
    local stop = text:find('["\\]', at + 1) or fail()
    while text:sub(stop, stop) == "\\" do
      stop = text:find('["\\]', stop + 2) or fail()
    end
    local found = text:sub(at + 1, stop - 1):gsub("\\(.)", "%1")
    at = stop + 1
    return found
  end

  function value()
    local first = skip()
    local found = {}
    if first == "[" then
      items("]", function() table.insert(found, value()) end)
      return found
    elseif first == "{" then
      items("}", function()
        if skip() ~= '"' then
          fail()
        end
        local key = string_value()
        if skip() ~= ":" then
          fail()
        end
        at = at + 1
        found[key] = value()
      end)
      return found
    elseif first == '"' then
      return string_value()
    end
    local word = text:match("^[%w.+-]+", at) or fail()
    at = at + #word
    local constants = { ["true"] = true, ["false"] = false, null = "" }
    if constants[word] ~= nil then
      return constants[word]
    end
    return tonumber(word) or fail()
  end

  return value()
end

local function key(number, source, destination)
  return string.format("%d %s %s", number, source, destination)
end

-- Rows of the file, by queue pair and addresses. Several VNIs may have the same.
local known, problem = {}, nil

local function read(name)
  known, problem = {}, nil
  if name == "" then
    return
  end
  local file, reason = io.open(name)
  if not file then
    problem = reason
    return
  end
  local passed, rows = pcall(json, file:read("*a") or "")
  file:close()
  if not passed or type(rows) ~= "table" then
    problem = name .. ": " .. tostring(rows)
    return
  end
  for _, row in ipairs(rows) do
    local at = key(row.queue_pair, row.source, row.destination)
    known[at] = known[at] or {}
    table.insert(known[at], row)
  end
end

-- The preference's value is known when the first packet comes.
local read_from = nil

local function last(found)
  return found[#found]
end

-- The addresses of the innermost IP header.
local function innermost()
  local best
  for _, family in ipairs(addresses) do
    local source, destination = last({ family[1]() }), last({ family[2]() })
    if source and destination and (not best or source.offset > best.offset) then
      best = {
        source = tostring(source.value),
        destination = tostring(destination.value),
        offset = source.offset,
      }
    end
  end
  return best
end

local function row_of(number)
  local ends = innermost()
  if not ends then
    return nil
  end
  local vni = last({ vnis() })
  for _, row in ipairs(known[key(number, ends.source, ends.destination)] or {}) do
    if not vni or row.vni == vni.value then
      return row, vni ~= nil
    end
  end
end

function qp.dissector(buffer, _, root)
  local number = destination_qp()
  if not number then
    return
  end
  if read_from ~= qp.prefs.file then
    read_from = qp.prefs.file
    read(read_from)
  end
  if problem then
    root:add(qp, buffer(0, 0)):append_text(": " .. problem)
    return
  end
  local row, is_outer = row_of(number.value)
  if not row then
    return
  end
  local tree = root:add(qp, buffer(0, 0))
  tree:add(f.number, number.value):set_generated()
  local path = row.uplink
  for _, router in ipairs(row.routers or {}) do
    path = path .. " > " .. router
  end
  -- Its packets take all paths in turns: another source port is no other path than its own.
  local sprayed = row.state == "sprayed"
  if sprayed then
    path = string.format("sprayed over %d paths", row.paths)
  end
  for _, pair in ipairs({
    { f.path, path },
    { f.uplink, row.uplink },
    { f.vtep, row.vtep },
    { f.source_port, row.source_port },
    { f.state, row.state },
    { f.moves, row.moves },
  }) do
    tree:add(pair[1], pair[2]):set_generated()
  end
  if is_outer and not sprayed then
    local port = ports()
    tree:add(f.off_path, port.value ~= row.source_port):set_generated()
  end
  tree:append_text(string.format(": 0x%06x by %s, source port %d, %s", number.value, path,
    row.source_port, row.state))
end

register_postdissector(qp)
