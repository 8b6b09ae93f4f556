# Writes a C++ file that holds other files as text.
#
#   cmake -DOUTPUT=FILE.cc "-DFILES=NAME=PATH;NAME=PATH;..." [-DHEADER=HEADER.h -DFUNCTION=NAME] -P embed_text.cmake
#
# It defines embedded_texts() of src/backend/device_code/embedded_text.h, or a function of that type and another name,
# which HEADER declares. Compilers limit the length of a string (64 KiB is what the standard asks of them), so a text is
# an array of shorter ones, cut at line ends.
cmake_minimum_required(VERSION 3.25)
set(longest 8000)
if(NOT DEFINED HEADER)
  set(HEADER backend/device_code/embedded_text.h)
  set(FUNCTION heddle::device_code::embedded_texts)
endif()

# The text in `content` as raw strings, one a line, in `result`.
function(as_pieces content name result)
  string(FIND "${content}" ")heddle\"" clash)
  if(NOT clash EQUAL -1)
    message(FATAL_ERROR "${name} contains )heddle\" and cannot stand in a raw string that ends so")
  endif()
  set(pieces "")
  string(LENGTH "${content}" left)
  while(left GREATER 0)
    set(length ${left})
    if(left GREATER longest)
      string(SUBSTRING "${content}" 0 ${longest} piece)
      string(FIND "${piece}" "\n" last_line_end REVERSE)
      if(last_line_end EQUAL -1)
        message(FATAL_ERROR "${name} has a line of more than ${longest} bytes")
      endif()
      math(EXPR length "${last_line_end} + 1")
    endif()
    string(SUBSTRING "${content}" 0 ${length} piece)
    string(SUBSTRING "${content}" ${length} -1 content)
    string(LENGTH "${content}" left)
    string(APPEND pieces "    R\"heddle(${piece})heddle\",\n")
  endwhile()
  set(${result} "${pieces}" PARENT_SCOPE)
endfunction()

set(text "// Made by cmake/embed_text.cmake.\n#include \"${HEADER}\"\n\nnamespace {\n\n")
set(rows "")
set(number 0)
foreach(entry IN LISTS FILES)
  string(FIND "${entry}" "=" at)
  string(SUBSTRING "${entry}" 0 ${at} name)
  math(EXPR at "${at} + 1")
  string(SUBSTRING "${entry}" ${at} -1 path)
  file(READ "${path}" content)
  as_pieces("${content}" "${name}" pieces)
  string(APPEND text "const char* const text${number}[] = {\n${pieces}    nullptr};\n\n")
  string(APPEND rows "    {\"${name}\", text${number}},\n")
  math(EXPR number "${number} + 1")
endforeach()
string(APPEND text "const heddle::device_code::EmbeddedText all[] = {\n${rows}    {nullptr, nullptr}};\n\n}  // namespace\n\n"
                   "const heddle::device_code::EmbeddedText* ${FUNCTION}() { return all; }\n")
file(WRITE "${OUTPUT}" "${text}")
